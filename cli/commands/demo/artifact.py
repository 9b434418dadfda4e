"""The demo's artifact: an archive of random bytes, which can be neither compressed nor cached."""

import gzip
import hashlib
import io
import os
import tarfile
from dataclasses import dataclass

NOISE = "noise"
_RUN = b"#!/bin/sh\n# A backend of the demo: noise beside it, nothing to serve.\nexec sleep infinity\n"


@dataclass(frozen=True)
class DemoArtifact:
    """An archive, and the digest of the file that a node must have after the install."""

    content: bytes
    sha256: str
    noise_sha256: str

    @property
    def size(self) -> int:
        return len(self.content)


def make_artifact(size: int) -> DemoArtifact:
    noise = os.urandom(size)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for name, content in (("run.sh", _RUN), (NOISE, noise)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    whole = packed.getvalue()
    return DemoArtifact(whole, hashlib.sha256(whole).hexdigest(), hashlib.sha256(noise).hexdigest())

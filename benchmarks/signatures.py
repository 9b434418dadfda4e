"""Measures the processor time of verification: a signed index of 1,000 entries, and one artifact of each kind.

`python -m benchmarks.signatures`
"""

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from nodesmith.gallery.artifact_keys import read_key
from nodesmith.gallery.cosign import bundle_signers, simple_signers
from nodesmith.gallery.index import read_index
from nodesmith.gallery.index_signing import Publisher
from nodesmith.gallery.minisign import SecretKey, read_signatures
from nodesmith.gallery.signed_index import check, verify
from tests.gallery import wild
from tests.gallery.test_cosign import DIGEST, envelope, payload, public_text, signed

ROUNDS = 21
BACKENDS = 63


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _index(Path(folder))
    private = ec.generate_private_key(ec.SECP256R1())
    key, secret = read_key(public_text(private)), SecretKey.make()
    artifact = Path(__file__)
    sha256 = hashlib.sha256(artifact.read_bytes()).hexdigest()
    minisig, public = secret.sign(artifact, sha256=sha256), secret.public()
    signature, bundle = signed(private, payload()), envelope(private)
    _print("minisign", lambda: read_signatures(minisig)[0].states(public) == sha256)
    _print(
        "cosign, simple signing", lambda: simple_signers(payload(), signature, f"sha256:{DIGEST}", [key]) == {key.id}
    )
    _print("cosign, bundle", lambda: bundle_signers(bundle, DIGEST, [key]) == {key.id})


def _index(folder: Path) -> None:
    index = folder / "index.yaml"
    index.write_text(wild.index(BACKENDS))
    root = Publisher(index, lifetime=timedelta(days=1)).sign([SecretKey.make()]).root.read_text()
    content = index.read_bytes()

    def download(url: str) -> bytes | None:
        path = Path(url.removeprefix("file://"))
        return path.read_bytes() if path.exists() else None

    def again() -> bool:
        proof = verify("index.yaml", f"file://{folder}/metadata/", root, {}, download)
        check(proof, content)
        return True

    entries = len(read_index(content.decode(), "wild").entries)
    _print(f"reading an index of {entries} entries", lambda: bool(read_index(content.decode(), "wild")))
    _print("verifying its metadata and digest", again)


def _print(what: str, work: Callable[[], bool]) -> None:
    def once() -> float:
        begun = time.process_time()
        assert work()
        return time.process_time() - begun

    print(f"{what}: {statistics.median(once() for _ in range(ROUNDS)) * 1000:.2f} ms")


if __name__ == "__main__":
    main()

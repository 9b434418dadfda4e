"""Signs an index: writes the TUF metadata that `signed_index` verifies. For publishers of a gallery."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization.json import JSONSerializer

from nodesmith.gallery.artifact_keys import PublicKey
from nodesmith.gallery.minisign import SecretKey
from nodesmith.gallery.signed_index import FOLDER

_ROLES = (Root.type, Timestamp.type, Snapshot.type, Targets.type)
_ROOT_LIFETIME = timedelta(days=365)

S = TypeVar("S", Root, Timestamp)


class CannotSign(ValueError):
    """These keys cannot sign this index."""


@dataclass(frozen=True)
class Published:
    """The written files."""

    root: Path
    root_version: int
    version: int
    expires_at: datetime


class Publisher:
    """The metadata of one index, in a folder beside it."""

    def __init__(self, index: Path, *, lifetime: timedelta) -> None:
        self._index = index
        self._folder = index.parent / FOLDER
        self._lifetime = lifetime

    def sign(self, keys: Sequence[SecretKey], *, threshold: int = 1) -> Published:
        """Sign the current index; the first time, create the root metadata for others to trust."""
        root = self._root()
        if root is None:
            root = _root_of([key.public() for key in keys], threshold, version=1)
            self._write(root, keys, root, f"1.{Root.type}")
        elif root.expires - _now() < self._lifetime:
            root = self._next_root(root, root, keys)
        return self._sign_index(root, keys)

    def rotate(self, old: Sequence[SecretKey], new: Sequence[SecretKey], *, threshold: int = 1) -> Published:
        """Replace the keys: the next root is signed by the old and by the new keys."""
        before = self._root()
        if before is None:
            raise CannotSign(f"{self._index} is not signed yet: use `nodesmith galleries sign`.")
        after = _root_of([key.public() for key in new], threshold, version=before.version)
        return self._sign_index(self._next_root(before, after, [*old, *new]), new)

    def _sign_index(self, root: Root, keys: Sequence[SecretKey]) -> Published:
        """Write targets before the documents that refer to them: a concurrent reader still gets the old index."""
        expires = _now() + self._lifetime
        version = self._version() + 1
        target = TargetFile.from_file(self._index.name, str(self._index), ["sha256"])
        targets = Targets(version=version, expires=expires, targets={self._index.name: target})
        listed = self._write(targets, keys, root, f"{version}.{Targets.type}")
        snapshot = Snapshot(version=version, expires=expires, meta={"targets.json": _described(version, listed)})
        seen = self._write(snapshot, keys, root, f"{version}.{Snapshot.type}")
        timestamp = Timestamp(version=version, expires=expires, snapshot_meta=_described(version, seen))
        self._write(timestamp, keys, root, Timestamp.type)
        newest = self._folder / f"{root.version}.{Root.type}.json"
        return Published(newest, root.version, version, min(expires, root.expires))

    def _next_root(self, before: Root, after: Root, keys: Sequence[SecretKey]) -> Root:
        following = Root.from_dict(after.to_dict())
        following.version, following.expires = before.version + 1, _now() + _ROOT_LIFETIME
        self._write(following, keys, before, f"{following.version}.{Root.type}")
        return following

    def _root(self) -> Root | None:
        """Return the newest published root."""
        versions = [int(path.name.split(".")[0]) for path in self._folder.glob(f"[0-9]*.{Root.type}.json")]
        return self._read(f"{max(versions)}.{Root.type}", Root) if versions else None

    def _version(self) -> int:
        if not (self._folder / f"{Timestamp.type}.json").exists():
            return 0
        return self._read(Timestamp.type, Timestamp).version

    def _read(self, name: str, kind: type[S]) -> S:
        path = self._folder / f"{name}.json"
        try:
            signed = Metadata.from_bytes(path.read_bytes()).signed
        except RepositoryError as error:
            raise CannotSign(f"{path} is not TUF metadata: {error}") from error
        if not isinstance(signed, kind):
            raise CannotSign(f"{path} is not the metadata of {kind.__name__.lower()}.")
        return signed

    def _write(
        self, signed: Root | Timestamp | Snapshot | Targets, keys: Sequence[SecretKey], trusted: Root, name: str
    ) -> bytes:
        """Sign, check that the keys suffice, and write the file atomically."""
        metadata: Metadata[Any] = Metadata(signed)
        for key in keys:
            metadata.sign(CryptoSigner(key.key, _tuf_key(key.public())), append=True)
        try:
            trusted.verify_delegate(signed.type, metadata.signed_bytes, metadata.signatures)
            if isinstance(signed, Root):
                signed.verify_delegate(Root.type, metadata.signed_bytes, metadata.signatures)
        except (RepositoryError, ValueError) as error:
            raise CannotSign(f"These keys are not enough to sign {name}.json: {error}") from error
        self._folder.mkdir(parents=True, exist_ok=True)
        content = metadata.to_bytes(JSONSerializer(compact=False))
        unfinished = self._folder / f".{name}.{os.getpid()}"
        unfinished.write_bytes(content)
        unfinished.replace(self._folder / f"{name}.json")
        return content


def _root_of(keys: Sequence[PublicKey], threshold: int, *, version: int) -> Root:
    """Give every role the same keys: a gallery with one publisher needs no more."""
    if not 1 <= threshold <= len({key.content for key in keys}):
        raise CannotSign(f"A threshold of {threshold} needs as many different keys.")
    root = Root(version=version, expires=_now() + _ROOT_LIFETIME, consistent_snapshot=True)
    for role in _ROLES:
        for key in keys:
            root.add_key(_tuf_key(key), role)
        root.roles[role].threshold = threshold
    return root


def _tuf_key(key: PublicKey) -> SSlibKey:
    return SSlibKey(key.id.lower(), "ed25519", "ed25519", {"public": key.raw().hex()})


def _described(version: int, content: bytes) -> MetaFile:
    return MetaFile.from_data(version, content, ["sha256"])


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)

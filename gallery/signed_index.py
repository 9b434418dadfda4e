"""A signed index: TUF metadata beside it states the bytes of the index, its version and its expiry.

python-tuf does the checks of the specification: signatures and thresholds, the chain of roots, increasing versions,
expiry, lengths and hashes. The verified metadata are stored in the database, for the next comparison.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tuf.api.exceptions import DownloadError, DownloadHTTPError, RepositoryError
from tuf.api.metadata import Metadata, Root, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from nodesmith.domain.gallery import IndexProof

FOLDER = "metadata/"
"""folder of the metadata, relative to the index"""
LARGEST = 1_000_000
"""size limit of each metadata document"""
_LIMITS = UpdaterConfig(
    max_root_rotations=64,
    root_max_length=LARGEST,
    timestamp_max_length=16_384,
    snapshot_max_length=LARGEST,
    targets_max_length=LARGEST,
)
_ROLES = (Root.type, Timestamp.type, Snapshot.type, Targets.type)
_BROKEN = (RepositoryError, DownloadError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""exceptions of python-tuf on untrusted documents"""

Download = Callable[[str], bytes | None]
"""url -> content, or None if the file does not exist; blocks, and raises if it cannot be read"""


class IndexRefused(ValueError):
    """The index is not trustworthy; the message says why."""


def check_root(text: str) -> None:
    """Refuse an admin's root metadata that its own keys have not signed."""
    try:
        root = Metadata[Root].from_bytes(text.encode())
        root.verify_delegate(Root.type, root)
    except _BROKEN as error:
        raise IndexRefused(f"It is not TUF root metadata: {_words(error)}") from error


def verify(name: str, base: str, root: str, known: Mapping[str, str], download: Download) -> IndexProof:
    """Fetch and verify the metadata below `base`; `name` is the index's file name. Blocks: call it in a thread."""
    with tempfile.TemporaryDirectory(prefix="nodesmith-tuf-") as folder:
        for role in set(known) & set(_ROLES[1:]):
            _document(folder, role).write_text(known[role])
        try:
            trusted = (known.get(Root.type) or root).encode()
            updater = Updater(folder, base, fetcher=_Downloads(download), config=_LIMITS, bootstrap=trusted)
            updater.refresh()
            target = updater.get_targetinfo(name)
        except _BROKEN as error:
            raise IndexRefused(f"its signed metadata is refused: {_words(error)}") from error
        if target is None:
            raise IndexRefused(f"its signed metadata does not list {name}")
        return _proof({role: _document(folder, role).read_text() for role in _ROLES}, target)


def check(proof: IndexProof, content: bytes) -> None:
    """Raise unless these bytes are the signed index."""
    if len(content) != proof.length or hashlib.sha256(content).hexdigest() != proof.sha256:
        raise IndexRefused("the index is not the one that its metadata lists (length or sha256 differ)")


def _proof(documents: Mapping[str, str], target: TargetFile) -> IndexProof:
    signed: dict[str, Any] = {role: Metadata.from_bytes(text.encode()).signed for role, text in documents.items()}
    return IndexProof(
        root_version=signed[Root.type].version,
        version=signed[Timestamp.type].version,
        expires_at=min(each.expires for each in signed.values()),
        metadata=documents,
        length=target.length,
        sha256=target.hashes.get("sha256", ""),
    )


def _document(folder: str, role: str) -> Path:
    return Path(folder, f"{role}.json")


def _words(error: BaseException) -> str:
    """Include the cause: python-tuf wraps the exceptions of a download."""
    said = str(error) or type(error).__name__
    return f"{said} ({_words(error.__cause__)})" if isinstance(error, DownloadError) and error.__cause__ else said


class _Downloads(FetcherInterface):
    """Lets python-tuf download with our client: with the host's credential, certificates and proxy."""

    def __init__(self, download: Download) -> None:
        self._download = download

    def _fetch(self, url: str) -> Iterator[bytes]:
        content = self._download(url)
        if content is None:
            raise DownloadHTTPError(f"{url} does not exist", 404)
        return iter([content])

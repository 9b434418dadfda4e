"""What has come of a download: a file keyed by the digest of the whole."""

import contextlib
import hashlib
import threading
from pathlib import Path
from typing import BinaryIO

from agent.failures import Stopped

_BLOCK = 1024 * 1024


class Partial:
    """The part of a blob that is here. Its methods block; one job at a time holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._note = path.with_suffix(".source")
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def open(self, halt: threading.Event) -> None:
        """Take up what an earlier try has fetched: hash it, then append."""
        self._file = self.path.open("a+b", buffering=0)
        self._file.seek(0)
        while block := self._file.read(_BLOCK):
            if halt.is_set():
                raise Stopped
            self._hash.update(block)
            self.size += len(block)

    def append(self, blocks: list[bytes]) -> None:
        for block in blocks:
            if self._file is None:
                raise Stopped
            self._write(self._file, block)
            self._hash.update(block)
            self.size += len(block)

    def _write(self, file: BinaryIO, block: bytes) -> None:
        """Without a buffer of its own a file may take less than it is given."""
        rest = memoryview(block)
        while rest:
            rest = rest[file.write(rest) :]

    def restart(self) -> None:
        """Nothing of it can be used."""
        if self._file is not None:
            self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.size = 0

    def validator_of(self, uri: str) -> str:
        """What the source said when these bytes came from it."""
        try:
            noted, validator = self._note.read_text().split("\n")
        except (OSError, ValueError):
            return ""
        return validator if noted == _mark(uri) else ""

    def note(self, uri: str, validator: str) -> None:
        self._note.write_text(f"{_mark(uri)}\n{validator}")

    def leave(self) -> None:
        """Close it; what is empty is of no use to the next try."""
        if self.size == 0:
            self.discard()
        self._close()

    def discard(self) -> None:
        self._close()
        for path in (self.path, self._note):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _mark(uri: str) -> str:
    """A uri may hold secrets: only its digest is written down."""
    return hashlib.sha256(uri.encode()).hexdigest()

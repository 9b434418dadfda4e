"""The partial file of a download: appended by the transfer, followed by the unpacker."""

import contextlib
import enum
import hashlib
import threading
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

from nodesmith.agent.operations.failures import Stopped

_BLOCK = 1024 * 1024
_POLL_S = 0.2


class _End(enum.Enum):
    OPEN = enum.auto()
    WHOLE = enum.auto()
    BROKEN = enum.auto()


class PartialFile:
    """The received part of a blob. Its methods block; one job at a time uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.generation = 0
        """number of restarts from the beginning"""
        self._validator_file = path.with_suffix(".source")
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None
        self._moved = threading.Condition()
        self._end = _End.OPEN

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def open(self, halt: threading.Event) -> None:
        """Open for append, after hashing what an earlier attempt fetched."""
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
            self._grow(len(block))

    def _grow(self, came: int) -> None:
        with self._moved:
            self.size += came
            self._moved.notify_all()

    def _write(self, file: BinaryIO, block: bytes) -> None:
        """Write completely, because an unbuffered file may accept only a part."""
        rest = memoryview(block)
        while rest:
            rest = rest[file.write(rest) :]

    def restart(self) -> None:
        """Discard the content and begin again."""
        if self._file is not None:
            self._file.truncate(0)
        self._hash = hashlib.sha256()
        with self._moved:
            self.size = 0
            self.generation += 1
            self._moved.notify_all()

    def finish(self) -> None:
        """Mark the file as complete: followers read to the end."""
        self._set_end(_End.WHOLE)

    def abort(self) -> None:
        """Mark the file as incomplete for good: followers stop."""
        self._set_end(_End.BROKEN)

    def follow(self, halt: threading.Event) -> "PartialFileReader":
        """Return a reader that starts at the beginning and waits for further bytes."""
        return PartialFileReader(self, halt)

    def wait_beyond(self, position: int, generation: int, halt: threading.Event) -> bool:
        """Wait for bytes beyond `position`; False at the end. Raises `Stopped` on restart, abort or halt."""
        with self._moved:
            while self.generation == generation and self.size <= position and self._end is _End.OPEN:
                if halt.is_set():
                    raise Stopped
                self._moved.wait(_POLL_S)
            if self.generation != generation or self._end is _End.BROKEN:
                raise Stopped
            return self.size > position

    def _set_end(self, end: "_End") -> None:
        with self._moved:
            self._end = end
            self._moved.notify_all()

    def validator_of(self, uri: str) -> str:
        """Return the validator that this source sent with the stored bytes."""
        try:
            noted, validator = self._validator_file.read_text().split("\n")
        except (OSError, ValueError):
            return ""
        return validator if noted == _uri_digest(uri) else ""

    def save_validator(self, uri: str, validator: str) -> None:
        self._validator_file.write_text(f"{_uri_digest(uri)}\n{validator}")

    def close(self) -> None:
        """Close the file, and delete it if it is empty."""
        if self.size == 0:
            self.discard()
        self._close()

    def discard(self) -> None:
        self._close()
        for path in (self.path, self._validator_file):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class PartialFileReader(BufferedIOBase):
    """A stream over a partial file that waits for bytes not yet received."""

    def __init__(self, partial: PartialFile, halt: threading.Event) -> None:
        self._partial = partial
        self._halt = halt
        self._generation = partial.generation
        self._position = 0
        self._file = partial.path.open("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at least one byte and at most `size`; empty at the end."""
        if not self._partial.wait_beyond(self._position, self._generation, self._halt):
            return b""
        block = self._file.read(min(size if size is not None and size >= 0 else _BLOCK, _BLOCK))
        self._position += len(block)
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


def _uri_digest(uri: str) -> str:
    """Hash the uri, because it may contain secrets that must not be stored."""
    return hashlib.sha256(uri.encode()).hexdigest()

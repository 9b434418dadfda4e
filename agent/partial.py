"""What has come of a download: a file keyed by the digest of the whole."""

import contextlib
import enum
import hashlib
import threading
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

from agent.failures import Stopped

_BLOCK = 1024 * 1024
_LOOK_S = 0.2


class _End(enum.Enum):
    OPEN = enum.auto()
    WHOLE = enum.auto()
    BROKEN = enum.auto()


class Partial:
    """The part of a blob that is here. Its methods block; one job at a time holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.generation = 0
        """how often it was begun anew"""
        self._note = path.with_suffix(".source")
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None
        self._moved = threading.Condition()
        self._end = _End.OPEN

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
            self._grow(len(block))

    def _grow(self, came: int) -> None:
        with self._moved:
            self.size += came
            self._moved.notify_all()

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
        with self._moved:
            self.size = 0
            self.generation += 1
            self._moved.notify_all()

    def finish(self) -> None:
        """Nothing more will come: a follower reads to the end."""
        self._set_end(_End.WHOLE)

    def give_up(self) -> None:
        """Nothing more will come, and it is not whole: a follower stops."""
        self._set_end(_End.BROKEN)

    def follow(self, halt: threading.Event) -> "Follower":
        """Read it from the beginning while it grows."""
        return Follower(self, halt)

    def wait_beyond(self, position: int, generation: int, halt: threading.Event) -> bool:
        """Until there is more than `position`; False when that was all. `Stopped` when it is not worth reading on."""
        with self._moved:
            while self.generation == generation and self.size <= position and self._end is _End.OPEN:
                if halt.is_set():
                    raise Stopped
                self._moved.wait(_LOOK_S)
            if self.generation != generation or self._end is _End.BROKEN:
                raise Stopped
            return self.size > position

    def _set_end(self, end: "_End") -> None:
        with self._moved:
            self._end = end
            self._moved.notify_all()

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


class Follower(BufferedIOBase):
    """A partial file as a stream that waits for what has not come yet."""

    def __init__(self, partial: Partial, halt: threading.Event) -> None:
        self._partial = partial
        self._halt = halt
        self._generation = partial.generation
        self._position = 0
        self._file = partial.path.open("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """At least one byte, at most `size`; nothing at the end."""
        if not self._partial.wait_beyond(self._position, self._generation, self._halt):
            return b""
        block = self._file.read(min(size if size is not None and size >= 0 else _BLOCK, _BLOCK))
        self._position += len(block)
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


def _mark(uri: str) -> str:
    """A uri may hold secrets: only its digest is written down."""
    return hashlib.sha256(uri.encode()).hexdigest()

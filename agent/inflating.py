"""An archive as a stream of bytes: unpacked by its first bytes, watched while it is read. Blocking."""

import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from typing import IO, TYPE_CHECKING, cast

from agent.failures import OperationFailed, Stopped
from domain.operation import Reason

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

DAMAGED = (EOFError, zlib.error, zstd.ZstdError)
BLOCK = 1024 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAGIC = 4
_GZIP_MEMBER = 31
"""zlib's word for: with the header and the checksum of gzip"""
_MOST_OVERHEAD = 16 * BLOCK
"""of one member: names, attributes and maps of holes are kept in memory"""


@contextmanager
def unpacked(file: "Watched") -> Iterator[IO[bytes]]:
    """What is inside, by the first bytes: gzip, zstd, or a plain tar."""
    first = file.peek()
    if first.startswith(_GZIP):
        yield cast("IO[bytes]", _Inflated(file))
    elif first.startswith(_ZSTD):
        with zstd.ZstdFile(cast("IO[bytes]", file)) as packed:
            yield cast("IO[bytes]", packed)
    else:
        yield cast("IO[bytes]", file)


def read_to_end(packed: "Metered") -> None:
    """The checksum comes last, after what tar cares about."""
    with packed.sparingly():
        while packed.read(BLOCK):
            pass


class Metered(BufferedIOBase):
    """What is inside, and how much of it is read for nothing that lands on the disk: that is where bombs hide."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._left: int | None = None

    @contextmanager
    def sparingly(self) -> Iterator[None]:
        """While headers, or what comes after the last member, are read."""
        self._left = _MOST_OVERHEAD
        yield
        self._left = None

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        block = self._packed.read(-1 if size is None else size)
        if self._left is not None:
            self._left -= len(block)
            if self._left < 0:
                raise OperationFailed(Reason.BAD_ARCHIVE, "The archive has more between its members than in them.")
        return block


class Watched(BufferedIOBase):
    """The file as it is read: says that something moves, and stops in the middle of the largest member."""

    def __init__(self, file: BufferedIOBase, halt: threading.Event, tick: Callable[[], None]) -> None:
        self._file = file
        self._halt = halt
        self._tick = tick
        self._first = b""
        self._since = 0

    def peek(self) -> bytes:
        while len(self._first) < _MAGIC and (block := self._file.read(_MAGIC - len(self._first))):
            self._first += block
        return self._first

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        if self._halt.is_set():
            raise Stopped
        wanted = -1 if size is None else size
        if not self._first:
            block = self._file.read(wanted)
            self._count(len(block))
            return block
        first = self._first if wanted < 0 else self._first[:wanted]
        self._first = self._first[len(first) :]
        return first

    def _count(self, came: int) -> None:
        self._since += came
        if self._since >= BLOCK:
            self._since = 0
            self._tick()


class _Inflated(BufferedIOBase):
    """gzip in large blocks: the standard library's reader takes 8 KiB at a time, which costs half the speed."""

    def __init__(self, file: Watched) -> None:
        self._file = file
        self._member = zlib.decompressobj(_GZIP_MEMBER)
        self._ahead = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes, nothing only at the end; `EOFError` when the end is missing."""
        while True:
            packed = self._ahead or self._file.read(BLOCK)
            if self._member.eof:
                if not packed.strip(b"\0"):
                    return b""
                self._member = zlib.decompressobj(_GZIP_MEMBER)
            if not packed:
                raise EOFError("it is cut off")
            block = self._member.decompress(packed, max(size or 0, 0))
            self._ahead = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if block:
                return block

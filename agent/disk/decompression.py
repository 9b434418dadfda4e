"""Decompresses an archive stream by its magic bytes, with activity reports and early stop. Blocking."""

import sys
import threading
import zlib
from collections.abc import Callable
from io import BufferedIOBase
from typing import IO, TYPE_CHECKING, cast

from nodesmith.agent.operations.failures import OperationFailed, Stopped
from nodesmith.domain.operation import Reason

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

DAMAGED = (EOFError, zlib.error, zstd.ZstdError)
BLOCK = 1024 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAGIC = 4
_GZIP_MEMBER = 31
"""zlib's window bits for a gzip header and checksum"""
_INPUT = 64 * 1024
"""small, because what follows the end of a frame is copied"""
_FRAMES = 4096
_OUTPUT_PER_FRAME = 128
"""bytes, on average, of every frame after the first ones"""
_UNSUPPORTED = {b"\xfd7zX": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z"}


def decompressed(file: "ObservedFile") -> IO[bytes]:
    """Return the decompressed stream of a gzip, zstd or plain tar file."""
    first = file.peek()
    for magic, packing in _UNSUPPORTED.items():
        if first.startswith(magic):
            message = f"The archive is packed with {packing}; a .tar, .tar.gz or .tar.zst is needed."
            raise OperationFailed(Reason.BAD_ARCHIVE, message)
    if first.startswith(_GZIP):
        return cast("IO[bytes]", _GzipReader(file))
    if first.startswith(_ZSTD):
        return cast("IO[bytes]", _ZstdReader(file))
    return cast("IO[bytes]", file)


class ObservedFile(BufferedIOBase):
    """Reports activity while the file is read, and stops on `halt` even within a large member."""

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


class _FrameLimit:
    """Limits gzip members and zstd frames: each takes time, and an empty one has neither output nor a limit of its own.

    Tools that make many (eStargz, bgzip, pzstd) put at least one file into each.
    """

    def __init__(self) -> None:
        self._left = _FRAMES * _OUTPUT_PER_FRAME

    def begin_frame(self) -> None:
        self._left -= _OUTPUT_PER_FRAME
        if self._left < 0:
            raise OperationFailed(Reason.BAD_ARCHIVE, "The archive consists of too many empty compressed parts.")

    def count(self, block: bytes) -> bytes:
        self._left += len(block)
        return block


class _GzipReader(BufferedIOBase):
    """Reads gzip in large blocks: the standard library's reader uses 8 KiB, which costs half the speed."""

    def __init__(self, file: ObservedFile) -> None:
        self._file = file
        self._member = zlib.decompressobj(_GZIP_MEMBER)
        self._ahead = b""
        self._limit = _FrameLimit()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most `size` bytes, empty only at the end; raises `EOFError` on a truncated file."""
        while True:
            packed = self._ahead or self._file.read(_INPUT)
            if self._member.eof:
                if not packed.strip(b"\0"):
                    return b""
                self._limit.begin_frame()
                self._member = zlib.decompressobj(_GZIP_MEMBER)
            if not packed:
                raise EOFError("it is truncated")
            block = self._member.decompress(packed, max(size or 0, 0))
            self._ahead = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if block:
                return self._limit.count(block)


class _ZstdReader(BufferedIOBase):
    """Reads zstd; unlike the library's reader, it limits the number of frames."""

    def __init__(self, file: ObservedFile) -> None:
        self._file = file
        self._frame = zstd.ZstdDecompressor()
        self._limit = _FrameLimit()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most `size` bytes, empty only at the end; raises `EOFError` on a truncated file."""
        wanted = size if size else -1
        while True:
            packed = b""
            if self._frame.eof:
                if not (packed := self._frame.unused_data or self._file.read(_INPUT)):
                    return b""
                self._limit.begin_frame()
                self._frame = zstd.ZstdDecompressor()
            elif self._frame.needs_input and not (packed := self._file.read(_INPUT)):
                raise EOFError("it is truncated")
            if block := self._frame.decompress(packed, wanted):
                return self._limit.count(block)

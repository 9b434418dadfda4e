"""Reads a tar stream member by member. Strict: an archive without an end mark is rejected as truncated.

tarfile parses the rare headers (attributes, long names, sparse maps). Plain headers, of which there may be hundreds
of thousands, are parsed here in a third of the time, because a fleet unpacks images of many small files.
"""

import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Self, cast

from nodesmith.agent.disk.decompression import BLOCK
from nodesmith.agent.operations.failures import OperationFailed, Stopped
from nodesmith.domain.operation import Reason

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile

HEADER = 512
_PLAIN = frozenset((tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE))
_FIELDS = struct.Struct("100s8s16x12s12s8ss100s88x155s12x")
"""name, mode, size, mtime, checksum, type, link, prefix"""
_ADLER = 65521
_NO_CHECKSUM = b" " * 8
_HEADER_ERRORS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""errors that tarfile raises for malformed headers"""
_MAX_GLOBAL_ATTRIBUTES = 64
"""global attributes; tarfile copies them for each member"""
_MAX_OVERHEAD = 16 * BLOCK
"""bytes of headers at once: names, attributes and sparse maps are held in memory"""
_OVERHEAD_PER_MEMBER = 16 * 1024
"""average bytes of headers per member"""


class TarStream:
    """The decompressed bytes of an archive. `read` is for headers and limited; `blocks` is for file content."""

    def __init__(self, packed: IO[bytes], halt: threading.Event) -> None:
        self._packed = packed
        self._halt = halt
        self._block = memoryview(b"")
        self._position = 0
        self._overhead_left = _MAX_OVERHEAD

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        self._charge_overhead(size)
        return b"".join(self.blocks(size))

    def seek(self, position: int) -> None:
        """Skip forwards; raises if the archive ends before."""
        wanted = position - self._position
        self._charge_overhead(wanted)
        if sum(map(len, self.blocks(wanted))) != wanted:
            raise EOFError("it is truncated")

    def peek(self) -> bytes:
        """Return the next header without consuming it."""
        while len(self._block) < HEADER and (more := self._read_block()):
            self._block = memoryview(bytes(self._block) + more)
        return bytes(self._block[:HEADER])

    def blocks(self, size: int) -> Iterator[memoryview]:
        """Yield `size` bytes in blocks of at most a megabyte, fewer only at the end."""
        while size > 0:
            if not self._block:
                self._block = memoryview(self._read_block())
                if not self._block:
                    return
            block = self._block[:size]
            self._block = self._block[size:]
            self._position += len(block)
            size -= len(block)
            yield block

    def allow_member_headers(self) -> None:
        """Extend the header limit for one more member."""
        self._overhead_left = min(self._overhead_left + _OVERHEAD_PER_MEMBER, _MAX_OVERHEAD)

    def read_to_end(self) -> None:
        """Read the rest, so that the compression checksum at the end is verified."""
        while self.read(BLOCK):
            pass

    def _read_block(self) -> bytes:
        if self._halt.is_set():
            raise Stopped
        return self._packed.read(BLOCK)

    def _charge_overhead(self, size: int) -> None:
        """Limit the bytes between members: they never reach the disk, so disk limits do not stop such a bomb."""
        self._overhead_left -= size
        if size < 0 or self._overhead_left < 0:
            raise OperationFailed(Reason.BAD_ARCHIVE, "The archive has too many bytes outside of its files.")


class TarMember(tarfile.TarInfo):
    """A TarInfo that parses plain headers faster."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        if len(buf) != HEADER or buf[156:157] not in _PLAIN:
            return super().frombuf(buf, encoding, errors)
        name, mode, size, mtime, checksum, kind, link, prefix = _FIELDS.unpack(buf)
        member = cls(_text(name, encoding, errors))
        try:
            member.mode, member.size, member.mtime = _octal(mode), _octal(size), _octal(mtime)
            is_sound = (_octal(checksum) - _checksum(buf)) % _ADLER == 0
        except ValueError:  # rare: numbers in another encoding
            is_sound = False
        if not is_sound:
            return super().frombuf(buf, encoding, errors)
        member.type = kind
        member.linkname = _text(link, encoding, errors)
        if prefix[0]:
            member.name = f"{_text(prefix, encoding, errors)}/{member.name}"
        return member


def members_of(stream: TarStream) -> Iterator[tarfile.TarInfo]:
    """Yield one member after the other, without keeping them in memory."""
    if _is_end(stream.peek()):
        return
    archive = _opened(stream)
    while True:
        yield _next(archive)
        stream.allow_member_headers()
        stream.seek(archive.offset)
        if _is_end(stream.peek()):
            return


def _opened(stream: TarStream) -> tarfile.TarFile:
    """Open the tar, which reads the first header."""
    try:
        return tarfile.TarFile(fileobj=cast("IO[bytes]", stream), mode="r", tarinfo=TarMember)
    except _HEADER_ERRORS as error:
        raise tarfile.ReadError(f"a header is damaged ({error})") from error


def _next(archive: tarfile.TarFile) -> tarfile.TarInfo:
    try:
        member = archive.next()
    except _HEADER_ERRORS as error:
        raise tarfile.ReadError(f"a header is damaged ({error})") from error
    if member is None:  # tarfile treats a damaged header as the end
        raise tarfile.ReadError("a header is damaged")
    if len(archive.pax_headers) > _MAX_GLOBAL_ATTRIBUTES:
        raise tarfile.ReadError("there are too many global attributes")
    setattr(archive, "members", [])  # noqa: B010 - typeshed does not know it
    return member


def _is_end(header: bytes) -> bool:
    if len(header) < HEADER:
        raise EOFError("it is truncated")
    return header.count(0) == HEADER


def _octal(field: bytes) -> int:
    return int(field.partition(b"\0")[0] or b"0", 8)


def _checksum(header: bytes | bytearray) -> int:
    """Sum all bytes except the checksum field, modulo 65521, which adler32 keeps in its lower half."""
    return (zlib.adler32(header[:148] + _NO_CHECKSUM + header[156:]) & 0xFFFF) - 1


def _text(field: bytes, encoding: str, errors: str) -> str:
    return field.partition(b"\0")[0].decode(encoding, errors)

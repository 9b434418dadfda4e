"""Reads a tar stream member by member. Strict: an archive without an end mark is rejected as truncated.

tarfile parses the rare headers (attributes, long names, sparse maps). Plain headers, of which there may be hundreds
of thousands, are parsed here, because a fleet unpacks images of many small files.
"""

import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, cast

from nodesmith.agent.disk.decompression import BLOCK
from nodesmith.agent.operations.failures import OperationFailed, Stopped
from nodesmith.domain.operation import Reason

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile

HEADER = 512
_BLOCK = 256 * 1024
"""fits into the cache of a processor, from which small files are then written"""
_PLAIN = frozenset((tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE))
_FIELDS = struct.Struct("100s8s16x12s12s8ss100s88x155s12x")
"""name, mode, size, mtime, checksum, type, link, prefix"""
_ADLER = 65521
_ENCODING = sys.getfilesystemencoding()
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
        if wanted <= len(self._block):
            self._block = self._block[wanted:]
            self._position = position
        elif sum(map(len, self.blocks(wanted))) != wanted:
            raise EOFError("it is truncated")

    def peek(self) -> bytes:
        """Return the next header without consuming it."""
        while len(self._block) < HEADER and (more := self._read_block()):
            self._block = memoryview(bytes(self._block) + more)
        return bytes(self._block[:HEADER])

    def take(self, size: int) -> memoryview | None:
        """Return `size` bytes of file content if they are in memory, as those of most small files are."""
        if size > len(self._block):
            return None
        block = self._block[:size]
        self._block = self._block[size:]
        self._position += size
        return block

    def blocks(self, size: int) -> Iterator[memoryview]:
        """Yield `size` bytes block by block, fewer only at the end."""
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
        return self._packed.read(_BLOCK)

    def _charge_overhead(self, size: int) -> None:
        """Limit the bytes between members: they never reach the disk, so disk limits do not stop such a bomb."""
        self._overhead_left -= size
        if size < 0 or self._overhead_left < 0:
            raise OperationFailed(Reason.BAD_ARCHIVE, "The archive has too many bytes outside of its files.")


def members_of(stream: TarStream) -> Iterator[tarfile.TarInfo]:
    """Yield one member after the other, without keeping them in memory."""
    rare = _RareHeaders(stream)
    while not _is_end(header := stream.peek()):
        member = _plain(header) if rare.may_be_skipped else None
        if member is None:
            member, end = rare.next()
        else:
            stream.seek(begin := stream.tell() + HEADER)
            end = begin + (-(-member.size // HEADER) * HEADER if member.type == tarfile.REGTYPE else 0)
        yield member
        stream.allow_member_headers()
        stream.seek(end)


class _RareHeaders:
    """Lets tarfile parse what `_plain` does not."""

    def __init__(self, stream: TarStream) -> None:
        self._stream = stream
        self._archive: tarfile.TarFile | None = None

    @property
    def may_be_skipped(self) -> bool:
        """Whether no global attribute applies to the members that follow."""
        return self._archive is None or not self._archive.pax_headers

    def next(self) -> tuple[tarfile.TarInfo, int]:
        """Return the next member and where its content ends."""
        try:
            member = self._first() if self._archive is None else self._following(self._archive)
        except _HEADER_ERRORS as error:
            raise tarfile.ReadError(f"a header is damaged ({error})") from error
        if member is None or self._archive is None:  # tarfile treats a damaged header as the end
            raise tarfile.ReadError("a header is damaged")
        if len(self._archive.pax_headers) > _MAX_GLOBAL_ATTRIBUTES:
            raise tarfile.ReadError("there are too many global attributes")
        setattr(self._archive, "members", [])  # noqa: B010 - typeshed does not know it
        return member, self._archive.offset

    def _first(self) -> tarfile.TarInfo | None:
        """Open the tar where the stream is, which reads one header."""
        self._archive = tarfile.TarFile(fileobj=cast("IO[bytes]", self._stream), mode="r")
        return self._archive.next() if getattr(self._archive, "firstmember", None) is not None else None

    def _following(self, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
        archive.offset = self._stream.tell()
        return archive.next()


def _plain(header: bytes) -> tarfile.TarInfo | None:
    """Parse a header without extensions; None if tarfile has to."""
    name, mode, size, mtime, checksum, kind, link, prefix = _FIELDS.unpack(header)
    if kind not in _PLAIN:
        return None
    try:
        if (_octal(checksum) - _checksum(header)) % _ADLER:
            return None
        member = tarfile.TarInfo(_text(name))
        member.mode, member.size, member.mtime = _octal(mode), _octal(size), _octal(mtime)
    except ValueError:  # rare: numbers in another encoding
        return None
    member.type = kind
    if link[0]:
        member.linkname = _text(link)
    if prefix[0]:
        member.name = f"{_text(prefix)}/{member.name}"
    if kind == tarfile.DIRTYPE:
        member.name = member.name.rstrip("/")
    return member


def _is_end(header: bytes) -> bool:
    if len(header) < HEADER:
        raise EOFError("it is truncated")
    return header.count(0) == HEADER


def _octal(field: bytes) -> int:
    return int(field.partition(b"\0")[0] or b"0", 8)


def _checksum(header: bytes) -> int:
    """Sum all bytes except the checksum field, modulo 65521, which adler32 keeps in its lower half."""
    return (zlib.adler32(header[:148] + _NO_CHECKSUM + header[156:]) & 0xFFFF) - 1


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(_ENCODING, "surrogateescape")

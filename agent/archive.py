"""Unpacking archives that nobody vouches for. Blocking, so called in a thread; looks at `halt` all the time.

The `data` filter of tarfile strips a leading slash, follows links that the archive itself has made, and has been
outwitted before. So the rules here are simpler and come first: no absolute name, no `..`, nothing written through
a link, and a link may climb only at its beginning and never out of the folder.
"""

import os
import shutil
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from agent.durable import Disk, has_no_links
from agent.failures import OperationFailed, Stopped
from domain.operation import Reason

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile
if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

_DAMAGED = (tarfile.ReadError, tarfile.HeaderError, EOFError, zlib.error, zstd.ZstdError)
_BLOCK = 1024 * 1024
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAGIC = 4
_GZIP_MEMBER = 31
"""zlib's word for: with the header and the checksum of gzip"""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"

OpenArchive = Callable[[], BufferedIOBase]


@dataclass(frozen=True)
class Limits:
    """An archive may be a bomb."""

    members: int
    unpacked: int


class Unpacker:
    """Unpacks one archive, or the layers of an image one over the other, below one folder."""

    def __init__(
        self, folder: Path, limits: Limits, halt: threading.Event, tick: Callable[[], None], disk: Disk | None = None
    ) -> None:
        self._folder = folder
        self._gate = _Gate(limits)
        self._halt = halt
        self._tick = tick
        self._disk = disk or Disk()
        self._copies: list[tuple[Path, Path]] = []

    def unpack(self, open_archive: OpenArchive) -> None:
        """A .tar, .tar.gz or .tar.zst; `OperationFailed` when it is damaged or would leave the folder."""
        self._run(open_archive, self._place)
        if self._gate.count == 0:
            raise OperationFailed(Reason.BAD_ARCHIVE, "The archive is empty.")

    def unpack_layer(self, open_archive: OpenArchive) -> None:
        """The same over what is there: a layer may replace and take away what lower layers brought."""
        self._gate.begin_layer()
        self._run(open_archive, self._place_over)

    def finish(self) -> None:
        """Where the disk knows no links, they are copies of what they lead to; some lead to another link."""
        waiting = self._copies
        while waiting:
            left = [(path, target) for path, target in waiting if not _copy(target, path)]
            if len(left) == len(waiting):
                return  # they lead nowhere, as links may
            waiting = left

    def _run(self, open_archive: OpenArchive, place: Callable[[tarfile.TarFile, tarfile.TarInfo], None]) -> None:
        try:
            with open_archive() as file, _unpacked(_Watched(file, self._halt, self._tick)) as packed:
                with tarfile.open(fileobj=packed, mode="r|", bufsize=_BLOCK, errorlevel=1) as members:
                    setattr(members, "copybufsize", _BLOCK)  # noqa: B010 - typeshed does not know it
                    for member in members:
                        place(members, member)
                _read_to_end(packed)
        except tarfile.FilterError as error:
            raise OperationFailed(Reason.ARCHIVE_ESCAPES, str(error)) from error
        except _DAMAGED as error:
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive cannot be read: {error}") from error

    def _place_over(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = PurePosixPath(member.name)
        if path.name == _OPAQUE:
            self._empty(self._gate.inside(member.name).parent)
        elif path.name.startswith(_WHITEOUT):
            self._clear(self._gate.inside(str(path.with_name(path.name.removeprefix(_WHITEOUT)))))
        else:
            if not member.isdir() or self._gate.is_link_below(path):
                self._clear(self._gate.inside(member.name))
            self._place(members, member)

    def _place(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._gate.admit(member)
        if not member.issym() and not member.islnk():
            return members.extract(member, self._folder, filter="data")
        try:
            return self._link(members, member)
        except OSError as error:
            if not has_no_links(error):
                raise
        path = self._folder / member.name
        start = path.parent if member.issym() else self._folder
        return self._copies.append((path, Path(os.path.normpath(start / member.linkname))))

    def _link(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if member.islnk():
            return members.extract(member, self._folder, filter="data")
        path = self._folder / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        return self._disk.symlink(path, member.linkname)

    def _empty(self, folder: PurePosixPath) -> None:
        for child in list((self._folder / folder).iterdir()) if (self._folder / folder).is_dir() else []:
            self._clear(folder / child.name)

    def _clear(self, path: PurePosixPath) -> None:
        """Take away what a lower layer has put there, link or tree."""
        self._gate.forget(path)
        there = self._folder / path
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)


def _copy(target: Path, path: Path) -> bool:
    if target.is_dir():
        shutil.copytree(target, path, dirs_exist_ok=True)
    elif target.is_file():
        shutil.copy2(target, path)
    return target.exists()


@contextmanager
def _unpacked(file: "_Watched") -> Iterator[IO[bytes]]:
    """What is inside, by the first bytes: gzip, zstd, or a plain tar."""
    first = file.peek()
    if first.startswith(_GZIP):
        yield cast("IO[bytes]", _Inflated(file))
    elif first.startswith(_ZSTD):
        with zstd.ZstdFile(cast("IO[bytes]", file)) as packed:
            yield cast("IO[bytes]", packed)
    else:
        yield cast("IO[bytes]", file)


def _read_to_end(packed: IO[bytes]) -> None:
    """The checksum comes last, after what tar cares about."""
    while packed.read(_BLOCK):
        pass


class _Watched(BufferedIOBase):
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
        if self._since >= _BLOCK:
            self._since = 0
            self._tick()


class _Inflated(BufferedIOBase):
    """gzip in large blocks: the standard library's reader takes 8 KiB at a time, which costs half the speed."""

    def __init__(self, file: _Watched) -> None:
        self._file = file
        self._member = zlib.decompressobj(_GZIP_MEMBER)
        self._ahead = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes, nothing only at the end; `EOFError` when the end is missing."""
        while True:
            packed = self._ahead or self._file.read(_BLOCK)
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


@dataclass
class _Gate:
    """Every member passes here before it is written."""

    limits: Limits
    count: int = 0
    size: int = 0
    links: set[PurePosixPath] = field(default_factory=set)
    below: set[PurePosixPath] = field(default_factory=set)
    """links of lower layers: a layer may replace them"""

    def begin_layer(self) -> None:
        self.below |= self.links
        self.links = set()

    def is_link_below(self, path: PurePosixPath) -> bool:
        return path in self.below

    def forget(self, path: PurePosixPath) -> None:
        self.below = {link for link in self.below if link != path and path not in link.parents}

    def inside(self, name: str) -> PurePosixPath:
        """A name that stays in the folder and is not reached through a link."""
        path = _inside(name, "it")
        if any(parent in self.links or parent in self.below for parent in path.parents):
            raise _escape(f"{name} would be written through a link")
        return path

    def admit(self, member: tarfile.TarInfo) -> None:
        self._count(member)
        path = self.inside(member.name)
        if path in self.links:
            raise _escape(f"{member.name} would be written through a link")
        if member.issym():
            _check_link(member, path.parent)
            self.links.add(path)
        elif member.islnk():
            self.inside(member.linkname)
        elif not member.isfile() and not member.isdir():
            raise _escape(f"{member.name} is a device or a pipe")

    def _count(self, member: tarfile.TarInfo) -> None:
        self.count += 1
        self.size += member.size
        if self.count > self.limits.members:
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive has more than {self.limits.members} members.")
        if self.size > self.limits.unpacked:
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive unpacks to more than {self.limits.unpacked} bytes.")


def _inside(name: str, what: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise _escape(f"{name}: {what} would leave the folder")
    return path


def _check_link(member: tarfile.TarInfo, start: PurePosixPath) -> None:
    """Climbing first and descending then stays inside whatever the other links do."""
    target = PurePosixPath(member.linkname)
    climbs = 0
    while climbs < len(target.parts) and target.parts[climbs] == "..":
        climbs += 1
    if target.is_absolute() or climbs > len(start.parts) or ".." in target.parts[climbs:]:
        raise _escape(f"{member.name} links to {member.linkname}")


def _escape(what: str) -> OperationFailed:
    return OperationFailed(Reason.ARCHIVE_ESCAPES, f"The archive would leave its folder: {what}.")

"""Unpacking an archive that nobody vouches for. Blocking, so called in a thread; looks at `halt` all the time.

The `data` filter of tarfile strips a leading slash, follows links that the archive itself has made, and has been
outwitted before. So the rules here are simpler and come first: no absolute name, no `..`, nothing written through
a link, and a link may climb only at its beginning and never out of the folder.
"""

import gzip
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from agent.failures import OperationFailed, Stopped
from domain.operation import Reason

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile

_DAMAGED = (tarfile.ReadError, tarfile.HeaderError, EOFError, zlib.error, gzip.BadGzipFile)
_BLOCK = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """An archive may be a bomb."""

    members: int
    unpacked: int


def unpack(archive: Path, folder: Path, limits: Limits, halt: threading.Event, tick: Callable[[], None]) -> None:
    """Unpack a .tar.gz below `folder`; raises `OperationFailed` when it is damaged or would leave the folder."""
    try:
        with archive.open("rb") as file, gzip.GzipFile(fileobj=_Watched(file, halt, tick)) as packed:
            with tarfile.open(fileobj=packed, mode="r|", errorlevel=1) as members:
                _extract(members, folder, limits)
            _read_to_end(packed)
    except tarfile.FilterError as error:
        raise OperationFailed(Reason.ARCHIVE_ESCAPES, str(error)) from error
    except _DAMAGED as error:
        raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive cannot be read: {error}") from error


def _extract(members: tarfile.TarFile, folder: Path, limits: Limits) -> None:
    gate = _Gate(limits)
    for member in members:
        gate.admit(member)
        members.extract(member, folder, filter="data")
    if gate.count == 0:
        raise OperationFailed(Reason.BAD_ARCHIVE, "The archive is empty.")


def _read_to_end(packed: gzip.GzipFile) -> None:
    """The checksum comes last, after what tar cares about."""
    while packed.read(_BLOCK):
        pass


class _Watched(BufferedIOBase):
    """The file as it is read: says that something moves, and stops in the middle of the largest member."""

    def __init__(self, file: BinaryIO, halt: threading.Event, tick: Callable[[], None]) -> None:
        self._file = file
        self._halt = halt
        self._tick = tick

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        if self._halt.is_set():
            raise Stopped
        self._tick()
        return self._file.read(-1 if size is None else size)


@dataclass
class _Gate:
    """Lets a member in, or raises; knows which links the archive has made so far."""

    limits: Limits
    count: int = 0
    size: int = 0
    links: set[PurePosixPath] = field(default_factory=set)

    def admit(self, member: tarfile.TarInfo) -> None:
        self._count(member)
        path = _inside(member.name, "it")
        if path in self.links or any(parent in self.links for parent in path.parents):
            raise _escape(f"{member.name} would be written through a link")
        if member.issym():
            _check_link(member, path.parent)
            self.links.add(path)
        elif member.islnk():
            _inside(member.linkname, "its link")
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

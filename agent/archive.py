"""Unpacking archives that nobody vouches for. Blocking, so called in a thread; looks at `halt` all the time."""

import contextlib
import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from agent import inflating
from agent.durable import Disk, has_no_links
from agent.failures import OperationFailed
from agent.gate import Gate, Limits
from agent.inflating import BLOCK, Metered, Watched, read_to_end, unpacked
from domain.operation import Reason

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile

_DAMAGED = (tarfile.ReadError, tarfile.HeaderError, *inflating.DAMAGED)
_IMPOSSIBLE = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ})
"""what the disk says to names that no tree can have; another try would not help"""
_WORTH_HURRYING = 4 * BLOCK
_HURRY_EVERY = 16
"""blocks of the archive: the disk writes beside us, instead of all at the end"""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"

OpenArchive = Callable[[], BufferedIOBase]


class Unpacker:
    """Unpacks one archive, or the layers of an image one over the other, below one folder."""

    def __init__(
        self,
        folder: Path,
        limits: Limits,
        halt: threading.Event,
        tick: Callable[[], None],
        *,
        disk: Disk | None = None,
        require_space: Callable[[int], None] | None = None,
    ) -> None:
        """`require_space` fails when so many bytes do not fit on the disk beside its headroom."""
        self._folder = folder
        self._gate = Gate(limits)
        self._halt = halt
        self._tick = tick
        self._disk = disk or Disk()
        self._copies: list[tuple[Path, Path]] = []
        self._is_first_layer = True
        self._writing: Path | None = None
        """the large file that is being unpacked"""
        self._blocks = 0
        self._require_space = require_space or (lambda _: None)
        self._unchecked = 0

    def unpack(self, open_archive: OpenArchive) -> None:
        """A .tar, .tar.gz or .tar.zst; `OperationFailed` when it is damaged or would leave the folder."""
        self._run(open_archive, self._place)
        if self._gate.count == 0:
            raise OperationFailed(Reason.BAD_ARCHIVE, "The archive is empty.")

    def unpack_layer(self, open_archive: OpenArchive) -> None:
        """The same over what is there: a layer may replace and take away what lower layers brought."""
        self._gate.begin_layer()
        self._run(open_archive, self._place_over)
        self._is_first_layer = False

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
            with open_archive() as file, unpacked(Watched(file, self._halt, self._moved)) as packed:
                metered = Metered(packed)
                with _opened(metered) as members:
                    for member in _each(members, metered):
                        place(members, member)
                read_to_end(metered)
        except tarfile.FilterError as error:
            raise OperationFailed(Reason.ARCHIVE_ESCAPES, str(error)) from error
        except (*_DAMAGED, ValueError) as error:  # such as a name with a zero in it
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive cannot be read: {error}") from error
        except OSError as error:
            if error.errno not in _IMPOSSIBLE:
                raise
            raise OperationFailed(Reason.BAD_ARCHIVE, f"The archive cannot be unpacked: {error.strerror}.") from error

    # the layers of an image -----------------------------------------------------------------------------------

    def _place_over(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = PurePosixPath(member.name).name
        if name == _OPAQUE:
            self._empty(self._gate.inside(member.name).parent)
        elif name.startswith(_WHITEOUT):
            self._take_away(self._gate.inside(_whited_out(member.name)))
        else:
            self._make_way(member)
            self._place(members, member)

    def _make_way(self, member: tarfile.TarInfo) -> None:
        """Nothing of a lower layer is written through or into; a folder stays, if a folder comes."""
        path = self._gate.inside(member.name)
        if not member.isdir() or self._gate.is_link_below(path) or not (self._folder / path).is_dir():
            self._clear(path)
        if not self._is_first_layer:
            self._gate.bring(path)

    def _empty(self, folder: PurePosixPath) -> None:
        for child in list((self._folder / folder).iterdir()) if (self._folder / folder).is_dir() else []:
            self._take_away(folder / child.name)

    def _take_away(self, path: PurePosixPath) -> None:
        """What lower layers brought; what this layer has put there stays, whichever comes first."""
        if not self._gate.is_brought(path):
            self._clear(path)
        elif not (self._folder / path).is_symlink():
            self._empty(path)

    def _clear(self, path: PurePosixPath) -> None:
        """Link or tree."""
        self._gate.forget(path)
        there = self._folder / path
        if there.is_dir() and not there.is_symlink():
            shutil.rmtree(there)
        else:
            there.unlink(missing_ok=True)

    # one member -----------------------------------------------------------------------------------------------

    def _place(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        member = self._gate.straight(member)
        self._gate.admit(member)
        if not member.issym() and not member.islnk():
            return self._extract(members, member)
        try:
            return self._link(members, member)
        except OSError as error:
            if not has_no_links(error):
                raise
        path = self._folder / member.name
        start = path.parent if member.issym() else self._folder
        return self._copies.append((path, Path(os.path.normpath(start / member.linkname))))

    def _extract(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._check_space(member.size)
        self._writing = self._folder / member.name if member.size >= _WORTH_HURRYING else None
        members.extract(member, self._folder, filter="data")
        self._hurry()
        self._writing = None

    def _check_space(self, size: int) -> None:
        """Before each megabyte: how much an archive unpacks to is only known while it is unpacked."""
        self._unchecked += size
        if self._unchecked >= BLOCK:
            self._require_space(size)
            self._unchecked = 0

    def _moved(self) -> None:
        self._tick()
        self._blocks += 1
        if self._blocks % _HURRY_EVERY == 0:
            self._hurry()

    def _hurry(self) -> None:
        if self._writing is not None:
            with contextlib.suppress(OSError):  # not there yet, or a disk that cannot: the sync at the end counts
                self._disk.hurry(self._writing)

    def _link(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = self._folder / member.name
        if member.islnk():
            return self._link_hard(members, member, path, self._folder / member.linkname)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        return self._disk.symlink(path, member.linkname)

    def _link_hard(self, members: tarfile.TarFile, member: tarfile.TarInfo, path: Path, target: Path) -> None:
        if target.exists() and target != path:
            return members.extract(member, self._folder, filter="data")
        if target in (copy for copy, _ in self._copies):
            return self._copies.append((path, target))
        raise OperationFailed(Reason.BAD_ARCHIVE, f"{member.name} links to {member.linkname}, which is not there.")


def _opened(metered: Metered) -> tarfile.TarFile:
    """It reads the first header at once."""
    with metered.sparingly():
        members = tarfile.open(fileobj=cast("IO[bytes]", metered), mode="r|", bufsize=BLOCK, errorlevel=1)
    setattr(members, "copybufsize", BLOCK)  # noqa: B010 - typeshed does not know it
    return members


def _each(members: tarfile.TarFile, metered: Metered) -> Iterator[tarfile.TarInfo]:
    """One after the other; tarfile would remember all of them, which half a million make felt."""
    while True:
        with metered.sparingly():
            member = members.next()
        if member is None:
            return
        setattr(members, "members", [])  # noqa: B010 - typeshed does not know it
        yield member


def _whited_out(name: str) -> str:
    """`a/.wh.b` -> `a/b`."""
    folder, _, whiteout = name.rpartition("/")
    return f"{folder}/{_named(whiteout)}" if folder else _named(whiteout)


def _named(whiteout: str) -> str:
    hidden = whiteout.removeprefix(_WHITEOUT)
    if hidden in ("", "."):
        raise OperationFailed(Reason.BAD_ARCHIVE, f"A layer takes away {whiteout!r}, which names nothing.")
    return hidden


def _copy(target: Path, path: Path) -> bool:
    if target.is_dir():
        shutil.copytree(target, path, dirs_exist_ok=True)
    elif target.is_file():
        shutil.copy2(target, path)
    return target.exists()

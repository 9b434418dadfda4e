"""Unpacks untrusted archives. Blocking, so called in a thread; checks `halt` throughout."""

import contextlib
import errno
import functools
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from nodesmith.agent.disk import decompression
from nodesmith.agent.disk.archive_policy import (
    ArchiveLimits,
    ArchivePolicy,
    bad_archive,
    check_link,
    link_target,
    parent_of,
)
from nodesmith.agent.disk.decompression import BLOCK, ObservedFile, decompressed
from nodesmith.agent.disk.durable_files import Disk, has_no_links
from nodesmith.agent.disk.link_copies import LinkCopies
from nodesmith.agent.disk.tar_members import TarStream, members_of

if TYPE_CHECKING or sys.version_info >= (3, 12):
    import tarfile
else:
    from backports import tarfile

_DAMAGED = (tarfile.TarError, *decompression.DAMAGED, ValueError)
"""ValueError is raised for names that no disk accepts, such as one with a NUL byte"""
_UNUSABLE_NAME_ERRORS = frozenset(
    {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.EMLINK}
)
"""errors for names that the disk cannot store; a retry would not help"""
_WRITEBACK_MIN_SIZE = 4 * BLOCK
_WRITEBACK_EVERY = 64
"""blocks between two write-back requests, so that the disk writes during unpacking and not only at the end"""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_MODE = 0o755
_S = 1_000_000_000

OpenArchive = Callable[[], BufferedIOBase]
Made = TypeVar("Made")


class Unpacker:
    """Unpacks one archive, or the layers of an image in order, into one folder that no other process writes to.

    The unpacker tracks what it created, and creates every entry exclusively: it never writes into an existing file or
    through an existing link.
    """

    def __init__(
        self,
        folder: Path,
        limits: ArchiveLimits,
        halt: threading.Event,
        tick: Callable[[], None],
        *,
        disk: Disk | None = None,
        require_space: Callable[[int], None] | None = None,
    ) -> None:
        """`require_space` raises when that many bytes do not fit on the disk in addition to its headroom."""
        self._folder = folder
        self._root = str(folder)
        self._disk = disk or Disk()
        self._policy = ArchivePolicy(limits)
        self._halt = halt
        self._tick = tick
        self._copies = LinkCopies(folder, self._policy)
        self._layers = 0
        self._emptied: set[str] = set()
        """folders that this layer has cleared of lower layers' content"""
        self._require_space = require_space or (lambda _: None)
        self._unchecked = 0
        self._exact_modes: set[int] = set()

    def unpack(self, open_archive: OpenArchive) -> None:
        """Unpack a .tar, .tar.gz or .tar.zst; raises `OperationFailed` if it is damaged or would leave the folder."""
        self._run(open_archive, self._place)
        if self._policy.count == 0:
            raise bad_archive("The archive is empty.")

    def unpack_layer(self, open_archive: OpenArchive) -> None:
        """Unpack a layer over the lower ones, whose content it may replace or remove."""
        self._layers += 1
        self._policy.begin_layer()
        self._emptied.clear()
        self._run(open_archive, self._place_over)

    def finish(self) -> None:
        """On a disk without links, replace each link by a copy of its target."""
        self._copies.make()

    def _run(self, open_archive: OpenArchive, place: Callable[[TarStream, tarfile.TarInfo], None]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._policy.folds_case = self._disk.folds_case(self._folder)
            with open_archive() as file:
                stream = TarStream(decompressed(ObservedFile(file, self._halt, self._tick)), self._halt)
                for member in members_of(stream):
                    place(stream, member)
                stream.read_to_end()
        except _DAMAGED as error:
            raise bad_archive(f"The archive cannot be read: {error}") from error
        except OSError as error:
            if error.errno not in _UNUSABLE_NAME_ERRORS:
                raise
            raise bad_archive(f"The archive cannot be unpacked: {error.strerror}.") from error

    # the layers of an image -----------------------------------------------------------------------------------

    def _place_over(self, stream: TarStream, member: tarfile.TarInfo) -> None:
        folder, _, name = member.name.rpartition("/")
        if not name.startswith(_WHITEOUT):
            return self._place(stream, member)
        self._policy.count_member(0)
        if name == _OPAQUE:
            return self._empty_folder(parent_of(self._policy.checked_path(member.name)))
        return self._remove_lower(
            self._policy.checked_path(f"{folder}/{_whiteout_target(name)}" if folder else _whiteout_target(name))
        )

    def _empty_folder(self, folder: str) -> None:
        """Remove lower layers' content from a folder, at most once per layer."""
        if self._layers == 1 or folder in self._emptied or folder not in self._policy.folders:
            return
        self._emptied.add(folder)
        for each in list((self._folder / folder).iterdir()):
            self._remove_lower(f"{folder}/{each.name}" if folder else each.name)

    def _remove_lower(self, path: str) -> None:
        """Remove a path of lower layers; what this layer created there stays, in either order."""
        if path in self._policy.layer_paths:
            self._empty_folder(path)
        elif self._layers > 1:
            self._clear(path)

    def _clear(self, path: str) -> None:
        """Delete a file, link or tree."""
        target = self._at(path)
        if path in self._policy.folders:
            for name in os.listdir(target):  # noqa: PTH208 - a hundred thousand Path objects take their time
                self._clear(f"{path}/{name}")
            os.rmdir(target)  # noqa: PTH106
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)  # noqa: PTH108
        self._policy.forget(path)
        self._copies.forget(path)

    # one member -----------------------------------------------------------------------------------------------

    def _place(self, stream: TarStream, member: tarfile.TarInfo) -> None:
        member = self._policy.resolve_hard_link(member)
        path = self._policy.admit(member)
        self._make_folder(parent_of(path))
        if member.isfile():
            self._write(stream, member, path)
        elif member.isdir():
            self._make_folder(path, replace=True)
        else:
            self._link(member, path)
        if self._layers > 1:
            self._policy.add_layer_path(path)

    def _make_folder(self, path: str, *, replace: bool = False) -> None:
        """Create a folder and its parents; `replace` (explicit folder entries only) replaces a lower layer's entry."""
        if path in self._policy.folders:
            return
        self._make_folder(parent_of(path))
        make = functools.partial(os.mkdir, self._at(path), _FOLDER_MODE)
        if replace:
            self._create_exclusively(path, make)
        else:
            make()
        self._policy.folders.add(path)

    def _create_exclusively(self, path: str, make: Callable[[], Made]) -> Made:
        """Create an entry; an existing one is deleted first, never written into."""
        try:
            return make()
        except FileExistsError:
            self._clear_existing(path)
            return make()

    def _clear_existing(self, path: str) -> None:
        """Delete an existing entry: a layer may replace any, one archive may repeat a file but not a folder."""
        if self._layers == 0 and path in self._policy.folders:
            raise bad_archive(f"{path} is a folder and a file in the same archive.")
        self._clear(path)

    def _write(self, stream: TarStream, member: tarfile.TarInfo, path: str) -> None:
        self._check_space(member.size)
        mode = _mode_of(member)
        file = self._create_exclusively(path, functools.partial(os.open, self._at(path), _NEW_FILE, mode))
        try:
            self._set_mode(file, mode)
            self._write_content(stream, member, file, path)
            moment = int(member.mtime * _S)
            os.utime(file, ns=(moment, moment))
        finally:
            os.close(file)

    def _set_mode(self, file: int, mode: int) -> None:
        """Set the mode unless files of this mode come out right: neither umask nor folder takes bits away."""
        if mode in self._exact_modes:
            return
        if stat.S_IMODE(os.fstat(file).st_mode) == mode:
            self._exact_modes.add(mode)
        else:
            os.fchmod(file, mode)

    def _write_content(self, stream: TarStream, member: tarfile.TarInfo, file: int, path: str) -> None:
        if not member.issparse() and (block := stream.take(member.size)) is not None:
            _write_all(file, block)
        elif not member.issparse():
            self._write_part(stream, file, path, member.size)
        else:
            stream.seek(member.offset_data)
            for start, size in _parts_of(member):
                os.lseek(file, start, os.SEEK_SET)
                self._write_part(stream, file, path, size)
            os.ftruncate(file, member.size)
        if member.size >= _WRITEBACK_MIN_SIZE:
            self._start_writeback(path)

    def _write_part(self, stream: TarStream, file: int, path: str, size: int) -> None:
        came = 0
        for number, block in enumerate(stream.blocks(size), 1):
            came += len(block)
            _write_all(file, block)
            if number % _WRITEBACK_EVERY == 0:
                self._start_writeback(path)
        if came < size:
            raise EOFError("it is truncated")

    def _check_space(self, size: int) -> None:
        """Check the space before each megabyte, because the unpacked size is known only while unpacking."""
        self._unchecked += size
        if self._unchecked >= BLOCK:
            self._require_space(size)
            self._unchecked = 0

    def _start_writeback(self, path: str) -> None:
        with contextlib.suppress(OSError):  # optional: the sync at the end is what counts
            self._disk.start_writeback(self._folder / path)

    # links ----------------------------------------------------------------------------------------------------

    def _link(self, member: tarfile.TarInfo, path: str) -> None:
        if member.islnk():
            return self._link_hard(path, self._policy.checked_path(member.linkname))
        check_link(member, path)
        make = functools.partial(self._disk.symlink, self._folder / path, member.linkname)
        self._make_link(path, make, leads_to=link_target(path, member.linkname))
        return self._policy.note_link(path, member.linkname)

    def _link_hard(self, path: str, target: str) -> None:
        if target == path or target in self._policy.folders:
            raise bad_archive(f"{path} is a hard link to itself or to a folder.")
        try:
            make = functools.partial(self._disk.hardlink, self._folder / path, self._folder / target)
            self._make_link(path, make, leads_to=target)
        except FileNotFoundError as error:
            raise bad_archive(f"{path} is a hard link to {target}, which does not exist.") from error

    def _make_link(self, path: str, make: Callable[[], None], *, leads_to: str) -> None:
        try:
            self._create_exclusively(path, make)
        except OSError as error:
            if not has_no_links(error):
                raise
            self._create_exclusively(path, functools.partial(self._copies.add, path, leads_to))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


def _mode_of(member: tarfile.TarInfo) -> int:
    """Drop setuid and write access of others; executable for others only if executable for the owner."""
    mode = member.mode & 0o755 | 0o600
    return mode if mode & 0o100 else mode & ~0o111


def _parts_of(member: tarfile.TarInfo) -> Iterable[tuple[int, int]]:
    """Return offset and size of each data part of a sparse file."""
    parts = cast("list[tuple[int, int]]", member.sparse)
    if any(start < 0 or size < 0 or start + size > member.size for start, size in parts):
        raise bad_archive(f"{member.name} has a sparse map that exceeds its size.")
    return parts


def _write_all(file: int, block: memoryview) -> None:
    while block:
        block = block[os.write(file, block) :]


def _whiteout_target(whiteout: str) -> str:
    """`.wh.b` -> `b`."""
    hidden = whiteout.removeprefix(_WHITEOUT)
    if hidden in ("", "."):
        raise bad_archive(f"A layer has the whiteout {whiteout!r}, which names no file.")
    return hidden

"""Atomic, durable file changes that survive a power failure. Blocking, so called in threads."""

import contextlib
import errno
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from nodesmith.agent.disk.file_system_sync import can_sync_file_system, sync_file_system
from nodesmith.agent.operations.failures import Stopped

_MANY = 100
"""paths; with fewer, a sync of each is as quick and does not wait for other programs' files"""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


class Disk:
    """Each primitive operation that changes the tree; tests record them or fail after one."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, content: bytes, mode: int) -> None:
        """Create and sync a new file, but not its name; never writes to an existing file or through a link."""
        descriptor = _create_new(path, mode)
        try:
            os.fchmod(descriptor, mode)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync(self, path: Path) -> None:
        """Sync a file's content, or the names in a folder."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file_system(self, folder: Path) -> bool:
        """Sync the folder's whole file system; False if that is not as durable there as a sync per file."""
        if not can_sync_file_system(folder):
            return False
        sync_file_system(folder)
        return True

    def start_writeback(self, path: Path) -> None:
        """Start writing dirty pages now, to shorten the sync at the end."""
        if sys.platform != "linux":
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def symlink(self, link: Path, target: str) -> None:
        link.symlink_to(target)

    def hardlink(self, link: Path, target: Path) -> None:
        os.link(target, link, follow_symlinks=False)

    def folds_case(self, folder: Path) -> bool:
        """Whether the file system is case-insensitive in that folder."""
        probe = folder / ".Probe"
        probe.touch()
        try:
            return (folder / ".pROBE").exists()
        finally:
            probe.unlink()

    def remove(self, folder: Path) -> None:
        """Delete a tree and ignore errors, because a leftover must not fail a completed change."""
        shutil.rmtree(folder, ignore_errors=True)


def _create_new(path: Path, mode: int) -> int:
    """Create a file exclusively; a draft of a killed agent or a link from an archive is deleted first."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        path.unlink()
        return os.open(path, flags, mode)


def write_durably(path: Path, content: bytes, *, mode: int = 0o600, disk: Disk | None = None) -> None:
    """Replace a file by one rename; readers see either the old or the new content."""
    disk = disk or Disk()
    draft = path.with_name(f".{path.name}.draft")
    disk.write(draft, content, mode)
    disk.rename(draft, path)
    disk.sync(path.parent)


def sync_tree(root: Path, halt: threading.Event, disk: Disk) -> None:
    """Sync everything below a folder, before a pointer refers to it; a large tree by one sync of its file system."""
    paths = list(itertools.islice(_paths_to_sync(root), _MANY + 1))
    if len(paths) > _MANY and disk.sync_file_system(root):
        return
    for path in _paths_to_sync(root):
        if halt.is_set():
            raise Stopped
        disk.sync(path)


def _paths_to_sync(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                yield path
        yield Path(folder)


def point(pointer: Path, target: str, disk: Disk) -> None:
    """Change the pointer's target by one rename; a file holds the name where symbolic links are unsupported."""
    draft = pointer.with_name(f".{pointer.name}.draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    try:
        disk.symlink(draft, target)
    except OSError as error:
        if not has_no_links(error):
            raise
        disk.write(draft, target.encode(), 0o644)
    disk.rename(draft, pointer)
    disk.sync(pointer.parent)


def target_of(pointer: Path) -> str | None:
    """Return the target that `point` wrote."""
    if pointer.is_symlink():
        return os.readlink(pointer)  # noqa: PTH115 - the name, not a path
    try:
        return pointer.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def has_no_links(error: OSError) -> bool:
    """Whether the error means that the file system does not support links."""
    return error.errno in _NO_LINKS

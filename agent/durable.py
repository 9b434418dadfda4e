"""Files that are there after a power cut, or as they were before: all blocking, so called in threads."""

import contextlib
import errno
import os
import shutil
import sys
import threading
from pathlib import Path

from agent.failures import Stopped

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


class Disk:
    """Every single step that changes the tree: what a test records, or stops after."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, content: bytes, mode: int) -> None:
        """Written and synced; the name is not yet."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            os.fchmod(descriptor, mode)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync(self, path: Path) -> None:
        """A file's content, or the names in a folder."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def hurry(self, path: Path) -> None:
        """Have the disk begin with what was written so far: the sync at the end then waits for little."""
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

    def remove(self, folder: Path) -> None:
        """What is in the way of nobody: a leftover must not undo what has been done."""
        shutil.rmtree(folder, ignore_errors=True)


def write_durably(path: Path, content: bytes, *, mode: int = 0o600, disk: Disk | None = None) -> None:
    """Replace a file by one rename; readers see the old content or the new."""
    disk = disk or Disk()
    draft = path.with_name(f".{path.name}.draft")
    disk.write(draft, content, mode)
    disk.rename(draft, path)
    disk.sync(path.parent)


def sync_tree(root: Path, halt: threading.Event, disk: Disk) -> None:
    """Make everything below a folder last, before anybody is pointed at it."""
    for folder, _, names in os.walk(root):
        for name in names:
            if halt.is_set():
                raise Stopped
            path = Path(folder, name)
            if not path.is_symlink():
                disk.sync(path)
        disk.sync(Path(folder))


def point(pointer: Path, target: str, disk: Disk) -> None:
    """Let `pointer` name another target, by one rename; without symbolic links it is a file that holds the name."""
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
    """The name that `point` has left."""
    if pointer.is_symlink():
        return os.readlink(pointer)  # noqa: PTH115 - the name, not a path
    try:
        return pointer.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def has_no_links(error: OSError) -> bool:
    """Whether a filesystem said that it knows no links."""
    return error.errno in _NO_LINKS

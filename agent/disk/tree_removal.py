"""Deletes a tree that other people's code filled: any depth, any permissions, and never through a link. Blocking.

`shutil.rmtree` needs a call and a descriptor for each level, so a deep tree raises `RecursionError`.
"""

import contextlib
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_ONLY = 0o700


def remove_tree(folder: Path) -> None:
    """Delete what can be deleted; the rest stays. Folders move up to `folder` before they are emptied in turn."""
    with contextlib.suppress(OSError), _opened(str(folder)) as root:
        fresh = (f".{secrets.token_hex(8)}.{number}" for number in itertools.count())
        while sum(_remove(root, name, fresh) for name in _names(root)):
            pass
    with contextlib.suppress(OSError):
        folder.rmdir()


def _remove(root: int, name: str, fresh: Iterator[str]) -> bool:
    """Delete one entry of the root, after its folders were moved there; False if it stays."""
    if _unlink(name, root):
        return True
    try:
        with _opened(name, root) as folder:
            for below in _names(folder):
                if not _unlink(below, folder):
                    _move_up(below, folder, root, next(fresh))
        os.rmdir(name, dir_fd=root)
    except OSError:
        return False
    return True


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as found:
        return [each.name for each in found]


def _unlink(name: str, folder: int) -> bool:
    """Delete a file or link; False for a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _move_up(name: str, folder: int, root: int, new_name: str) -> None:
    with contextlib.suppress(OSError):
        _open_to_owner(name, folder)
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=root)


@contextlib.contextmanager
def _opened(name: str, folder: int | None = None) -> Iterator[int]:
    _open_to_owner(name, folder)
    descriptor = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_to_owner(name: str, folder: int | None) -> None:
    """Change the mode of the folder itself: another process cannot put a link in its place between look and change."""
    handle = os.open(name, _HANDLE, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{handle}", _OWNER_ONLY)  # noqa: PTH101 - a descriptor, not a path
    finally:
        os.close(handle)

"""Files that are there after a power cut, or as they were before: all blocking, so called in threads."""

import contextlib
import os
import threading
from pathlib import Path

from agent.failures import Stopped


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file by one rename; readers see the old content or the new."""
    draft = path.with_name(f".{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path, halt: threading.Event) -> None:
    """Make everything below a folder last, before anybody is pointed at it."""
    for folder, _, names in os.walk(root):
        for name in names:
            if halt.is_set():
                raise Stopped
            _sync_file(Path(folder, name))
        sync_folder(Path(folder))


def _sync_file(path: Path) -> None:
    if path.is_symlink():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point(link: Path, target: str) -> None:
    """Let a symbolic link name another target, by one rename."""
    draft = link.with_name(f".{link.name}.draft")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    draft.symlink_to(target)
    draft.replace(link)
    sync_folder(link.parent)

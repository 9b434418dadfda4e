"""A reserved megabyte that is freed when the disk is full, so that plans, outcomes and tombstones can be written."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.operations.failures import is_full

log = structlog.stdlib.get_logger(__name__)

R = TypeVar("R")

SIZE = 1024 * 1024
_ROOM = 4 * SIZE
"""free space required to create the reserve again"""


class Reserve:
    """The file `reserve` in the home. Its methods block."""

    def __init__(self, home: Path) -> None:
        self.path = home / "reserve"

    def ensure(self) -> None:
        """Create the reserve if it is missing and the disk has room; never raises for a full disk."""
        if self.path.exists() or shutil.disk_usage(self.path.parent).free < _ROOM:
            return
        try:
            _fill(self.path)
        except OSError:
            log.warning("reserve.not_created", file=str(self.path))
            self.path.unlink(missing_ok=True)

    def release(self) -> bool:
        """Delete the reserve to free its space; False when there is none."""
        with contextlib.suppress(OSError):
            self.path.unlink()
            log.warning("reserve.released", file=str(self.path))
            return True
        return False


class ReservedDisk(Disk):
    """A disk for writes that must succeed: when it is full, releases the reserve and retries."""

    def __init__(self, disk: Disk, reserve: Reserve) -> None:
        self._disk = disk
        self._reserve = reserve

    def make_folder(self, folder: Path) -> None:
        self._retry_without_reserve(lambda: self._disk.make_folder(folder))

    def write(self, path: Path, content: bytes, mode: int) -> None:
        self._retry_without_reserve(lambda: self._disk.write(path, content, mode))

    def sync(self, path: Path) -> None:
        self._retry_without_reserve(lambda: self._disk.sync(path))

    def rename(self, old: Path, new: Path) -> None:
        self._retry_without_reserve(lambda: self._disk.rename(old, new))

    def symlink(self, link: Path, target: str) -> None:
        self._retry_without_reserve(lambda: self._disk.symlink(link, target))

    def remove(self, folder: Path) -> None:
        self._disk.remove(folder)

    def _retry_without_reserve(self, work: Callable[[], R]) -> R:
        try:
            return work()
        except OSError as error:
            if not is_full(error) or not self._reserve.release():
                raise
        return work()


def _fill(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, SIZE)
        else:
            os.write(descriptor, os.urandom(SIZE))
    finally:
        os.close(descriptor)

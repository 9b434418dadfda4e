"""A megabyte that is kept for the day when the disk is full: plans, ends and tombstones are written all the same."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from agent.durable import Disk
from agent.failures import is_full

log = structlog.stdlib.get_logger(__name__)

R = TypeVar("R")

SIZE = 1024 * 1024
_ROOM = 4 * SIZE
"""with less than that free, the reserve is not made again"""


class Reserve:
    """The file `reserve` of the home. Its methods block."""

    def __init__(self, home: Path) -> None:
        self.path = home / "reserve"

    def make(self) -> None:
        """If it is not there and the disk has room; a disk without room is no reason to fail."""
        if self.path.exists() or shutil.disk_usage(self.path.parent).free < _ROOM:
            return
        try:
            _fill(self.path)
        except OSError:
            log.warning("reserve.not_made", file=str(self.path))
            self.path.unlink(missing_ok=True)

    def give_up(self) -> bool:
        """False when there is none."""
        with contextlib.suppress(OSError):
            self.path.unlink()
            log.warning("reserve.given_up", file=str(self.path))
            return True
        return False


class VitalDisk(Disk):
    """The same disk for what must be written: the first time that it is full, the reserve is given up."""

    def __init__(self, disk: Disk, reserve: Reserve) -> None:
        self._disk = disk
        self._reserve = reserve

    def make_folder(self, folder: Path) -> None:
        self._insist(lambda: self._disk.make_folder(folder))

    def write(self, path: Path, content: bytes, mode: int) -> None:
        self._insist(lambda: self._disk.write(path, content, mode))

    def sync(self, path: Path) -> None:
        self._insist(lambda: self._disk.sync(path))

    def rename(self, old: Path, new: Path) -> None:
        self._insist(lambda: self._disk.rename(old, new))

    def symlink(self, link: Path, target: str) -> None:
        self._insist(lambda: self._disk.symlink(link, target))

    def remove(self, folder: Path) -> None:
        self._disk.remove(folder)

    def _insist(self, work: Callable[[], R]) -> R:
        try:
            return work()
        except OSError as error:
            if not is_full(error) or not self._reserve.give_up():
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

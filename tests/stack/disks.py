"""A small disk that a test can fill."""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MB = 1024 * 1024


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Write until no byte is free."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (MB, 4096, 1):
                with full_disk_expected():
                    while True:
                        filler.write(b"\0" * size)

    def free(self) -> None:
        self._filler.unlink()


@contextlib.contextmanager
def full_disk_expected() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


@contextlib.contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a small disk; skip the test where mounts are not permitted. The supervisor's unit tests need none."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}M,mode=755", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

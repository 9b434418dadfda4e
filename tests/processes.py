"""Processes of this machine, for tests that look for what was left behind."""

from collections.abc import Iterator
from pathlib import Path

import psutil


def working_below(folder: Path) -> list[psutil.Process]:
    """Processes whose working folder lies below that folder."""
    return [process for process, where in _folders() if where.startswith(str(folder))]


def _folders() -> Iterator[tuple[psutil.Process, str]]:
    for process in psutil.process_iter():
        try:
            yield process, process.cwd()
        except (psutil.Error, OSError):  # ended, or a path too long for the kernel to tell
            continue

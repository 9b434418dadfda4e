"""Identifies a process across restarts of its observer: clock changes and reused pids do not matter."""

import os
import sys
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STATE, _START_TIME = 0, 19
"""fields of /proc/<pid>/stat, counted after the name"""
_ENDED = (b"Z", b"X", b"x")


def boot_id() -> str:
    """Return the kernel's boot id; empty where the kernel has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def started_at(pid: int) -> float:
    """Return the start time in seconds since boot, which clock changes do not affect; 0 when it has ended."""
    if sys.platform != "linux":
        return _created_at(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return 0.0
    return int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK") if fields[_STATE] not in _ENDED else 0.0


def _created_at(pid: int) -> float:
    try:
        found = psutil.Process(pid)
        return found.create_time() if found.status() != psutil.STATUS_ZOMBIE else 0.0
    except psutil.NoSuchProcess:
        return 0.0


def identity_of_process(pid: int) -> str | None:
    """Return boot and start of the process, which no other process has with this pid; None when it has ended."""
    started = started_at(pid)
    return f"{boot_id()}/{started:.2f}" if started else None

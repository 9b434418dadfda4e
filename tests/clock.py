"""The clock of the machine, as processes see it, set by a test."""

import re
from pathlib import Path

import psutil
import pytest


def set_clock_an_hour_ahead(monkeypatch: pytest.MonkeyPatch, system: Path, pid: int) -> None:
    """The kernel's boot time is the clock minus the uptime, so it moves when the clock is set."""
    system.mkdir()
    moved = re.sub(r"btime (\d+)", lambda found: f"btime {int(found[1]) + 3600}", Path("/proc/stat").read_text())
    (system / "stat").write_text(moved)
    (system / str(pid)).symlink_to(f"/proc/{pid}")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(system))

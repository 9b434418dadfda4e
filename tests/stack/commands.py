"""The `nodesmith` command as a user calls it, on a home of the test's own."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stack import record
from stack.home import Home
from stack.ports import RANGE, is_free

NODESMITH = str(Path(sysconfig.get_path("scripts")) / "nodesmith")


def free_base() -> int:
    """Ten free ports in a row, below the range that the kernel hands out."""
    return next(base for base in range(20000, 30000, RANGE) if all(is_free(port) for port in range(base, base + RANGE)))


@dataclass
class Machine:
    """One home, and the commands on it."""

    folder: Path
    base: int = field(default_factory=free_base)
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """a command that runs ours, as another user for instance"""

    @property
    def home(self) -> Home:
        return Home(self.folder)

    def whole_environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NODESMITH_")}
        return {**clean, **self.environment}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*self.prefix, NODESMITH, *arguments, "--home", str(self.folder)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.whole_environment(), timeout=100
        )

    def up(self, *more: str, agents: int = 1) -> dict[str, Any]:
        """`up --detach --json`, ready."""
        done = self.run("up", "--detach", "--json", "--port-base", str(self.base), "--agents", str(agents), *more)
        assert done.returncode == 0, done.stderr
        ready: dict[str, Any] = json.loads(done.stdout)
        return ready

    def down(self) -> None:
        done = self.run("down")
        assert done.returncode == 0, done.stderr

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    def pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in record.read(self.home.processes_file) if process.pid}

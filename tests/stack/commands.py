"""Runs the `nodesmith` command as a user does, on the test's own home."""

import json
import os
import random
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodesmith.runtime.settings import ControlSettings
from nodesmith.stack.home import Home
from nodesmith.stack.processes import record
from nodesmith.stack.tcp_ports import RANGE, is_free
from tests.sources import ENVIRONMENT
from tests.temporal_client import temporal_settings

NODESMITH = str(Path(sysconfig.get_path("scripts")) / "nodesmith")


def free_base() -> int:
    """Return a random base of ten free ports below the ephemeral range, so that concurrent tests differ."""
    bases: list[int] = [*range(20000, 21000, RANGE), *range(22000, 23000, RANGE)]  # skips the ports of backends
    random.shuffle(bases)
    return next(base for base in bases if all(is_free(port) for port in range(base, base + RANGE)))


@dataclass
class Machine:
    """Runs commands on one home."""

    folder: Path
    base: int = field(default_factory=free_base)
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """a command prefix, for example to run as another user"""
    program: str = NODESMITH

    @property
    def home(self) -> Home:
        return Home(self.folder)

    def full_environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NODESMITH_")}
        return {**clean, **ENVIRONMENT, **self.environment}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*self.prefix, self.program, *arguments, "--home", str(self.folder)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=self.full_environment(), timeout=100
        )

    def up(self, *more: str, agents: int = 1) -> dict[str, Any]:
        """Run `up --detach --json` and return its JSON object."""
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

    def temporal_settings(self) -> ControlSettings:
        """Connection settings of this home's Temporal server."""
        connection = self.home.connection()
        assert connection is not None
        return temporal_settings(connection)

    def pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in record.read(self.home.processes_file) if process.pid}

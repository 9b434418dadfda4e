"""Starts, logs and stops one child process that ends with its parent."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodesmith.stack.errors import StackError
from nodesmith.stack.processes import launch

_LOG_LIMIT = 20 * 1024 * 1024
_ERROR = re.compile(r"fatal|error|panic|nodesmith:", re.IGNORECASE)


@dataclass(frozen=True)
class User:
    """An unprivileged user, and the folders that it must be able to read."""

    uid: int
    gid: int
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Program:
    """What to run. The kernel kills the process when the process that started it ends."""

    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """set in addition to the inherited variables"""
    withheld: tuple[str, ...] = ("NODESMITH_",)
    """prefixes of variables that the child does not inherit"""
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    """the signal that the kernel sends to the child when this process ends"""
    user: User | None = None
    stdin: int = asyncio.subprocess.DEVNULL
    """a file descriptor, or /dev/null"""

    def full_environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(self.withheld)}
        return {**inherited, **self.environment}

    def launcher(self) -> list[str]:
        """Return the command line that runs `argv` through `nodesmith.stack.processes.launch`."""
        order = {
            "parent": os.getpid(),
            "death_signal": int(self.death_signal),
            "user": {"uid": self.user.uid, "gid": self.user.gid} if self.user else None,
            "folders": [str(folder) for folder in self.user.folders] if self.user else [],
        }
        return [sys.executable, "-I", "-S", str(Path(launch.__file__)), json.dumps(order), *self.argv]


class Child:
    """A running program."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process, logged_before: int) -> None:
        self.program = program
        self._process = process
        self._logged_before = logged_before

    @classmethod
    async def start(cls, program: Program) -> "Child":
        """Start the program in a new session: Ctrl-C reaches only this process, which stops its children."""
        _rotate_log(program.log)
        with program.log.open("ab") as log:
            logged_before = log.tell()
            process = await asyncio.create_subprocess_exec(
                *program.launcher(),
                stdin=program.stdin,
                stdout=log,
                stderr=log,
                env=program.full_environment(),
                start_new_session=True,
            )
        return cls(program, process, logged_before)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def failure_line(self) -> str:
        """Return the log line that explains the exit: the last error line, else the last line."""
        with self.program.log.open("rb") as log:
            log.seek(self._logged_before)
            text = log.read().decode(errors="replace")
        return failure_line(text)

    async def stop(self, patience: float = 10.0) -> int:
        """Send the stop signal; after `patience` seconds kill the process group."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(self.program.stop_signal)
            try:
                async with asyncio.timeout(patience):
                    return await self.wait()
            except TimeoutError:
                self.kill()
        return await self.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


async def run_once(program: Program, stdin: str = "") -> str:
    """Run a program to completion and return its output; raise `StackError` if it failed."""
    process = await asyncio.create_subprocess_exec(
        *program.launcher(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=program.full_environment(),
        start_new_session=True,
    )
    output, _ = await process.communicate(stdin.encode())
    text = output.decode(errors="replace").strip()
    if process.returncode != 0:
        with contextlib.suppress(OSError):  # report the failure even if its log cannot be written
            program.log.write_text(text + "\n")
        raise StackError(
            f"{program.name} failed with exit code {process.returncode}: {failure_line(text)}",
            remedy=f"The whole message is in {program.log}.",
        )
    return text


def failure_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    return (errors or lines or ["it printed nothing"])[-1]


def _rotate_log(log: Path) -> None:
    """Rotate a large log and keep one old copy, so that repeated restarts do not fill the disk."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".old.log"))

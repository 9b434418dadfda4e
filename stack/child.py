"""One child process: how it is started, tied to us, logged and stopped."""

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

from stack import launch
from stack.errors import StackError

_LOG_LIMIT = 20 * 1024 * 1024
_TELLING = re.compile(r"fatal|error|panic|nodesmith:", re.IGNORECASE)


@dataclass(frozen=True)
class User:
    """An unprivileged user, and the folders that it must be able to see."""

    uid: int
    gid: int
    folders: tuple[Path, ...]


@dataclass(frozen=True)
class Program:
    """What to run. The process dies with the process that starts it."""

    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """set in addition to what it inherits"""
    withheld: tuple[str, ...] = ("NODESMITH_",)
    """variables of ours, by prefix, that it does not inherit"""
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    """what the kernel sends it when we are gone"""
    user: User | None = None
    stdin: int = asyncio.subprocess.DEVNULL
    """a file descriptor, or nothing to read"""

    def whole_environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(self.withheld)}
        return {**inherited, **self.environment}

    def launcher(self) -> list[str]:
        """The command line that ends in `argv`, by way of `stack.launch`."""
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
        """Start it in a session of its own: a Ctrl-C at the terminal reaches only us, and we stop it in order."""
        _turn_over(program.log)
        with program.log.open("ab") as log:
            logged_before = log.tell()
            process = await asyncio.create_subprocess_exec(
                *program.launcher(),
                stdin=program.stdin,
                stdout=log,
                stderr=log,
                env=program.whole_environment(),
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

    def last_words(self) -> str:
        """The line of its log that says why it ended: the last that tells of an error, else the last."""
        with self.program.log.open("rb") as log:
            log.seek(self._logged_before)
            text = log.read().decode(errors="replace")
        return last_words(text)

    async def stop(self, patience: float = 10.0) -> int:
        """Ask it to end; after `patience` seconds end it and whatever it started."""
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
    """Run a program to its end and return what it printed; `StackError` if it failed."""
    process = await asyncio.create_subprocess_exec(
        *program.launcher(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=program.whole_environment(),
        start_new_session=True,
    )
    output, _ = await process.communicate(stdin.encode())
    text = output.decode(errors="replace").strip()
    if process.returncode != 0:
        with contextlib.suppress(OSError):  # the reason matters more than its log
            program.log.write_text(text + "\n")
        raise StackError(
            f"{program.name} failed with exit code {process.returncode}: {last_words(text)}",
            remedy=f"The whole message is in {program.log}.",
        )
    return text


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["it said nothing"])[-1]


def _turn_over(log: Path) -> None:
    """Keep one old log, so that a stack that runs for months does not fill the disk with restarts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".old.log"))

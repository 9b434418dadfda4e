"""Faults at the boundaries of a plan's steps, and agents that restart on the same home."""

import asyncio
import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx2

from nodesmith.agent.assembly import AgentAssembly
from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.operations.change_plan import Step
from nodesmith.agent.operations.commands import NodeOperations
from nodesmith.agent.settings import AgentSettings
from nodesmith.contracts.nats.messages import (
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpQuestion,
    OpReply,
    Outcome,
)
from tests.agent.nodes import LONG
from tests.agent.operations_bench import RecordingReporter
from tests.agent.waiting import until

PLANNED = "planned"
"""the boundary before the first step, when the plan itself is written"""


class Killed(BaseException):
    """Simulates kill -9: no code catches it, and the disk refuses all further changes."""


FIRST_PORT, PORT_RANGES, PORTS = 23000, 350, 20
"""each home has its own ports, because probing a port occupies it for a moment"""


class Fault(Enum):
    KILL_BEFORE = "killed before it is recorded"
    KILL_AFTER = "killed after it is recorded"
    STOP = "stopped"
    FULL = "disk full"
    FULL_FOR_GOOD = "disk full without a reserve"


class Boundary(Disk):
    """Triggers its fault when the journal records one step of one operation."""

    def __init__(self, home: Path) -> None:
        self.seen: list[str] = []
        self.on_stop: Callable[[], None] = lambda: None
        self._home = home
        self._op_id = self._step = ""
        self._fault = Fault.STOP
        self._is_dead = self._is_full = self._dies_at_rename = False

    def arm(self, op_id: str, step: str, fault: Fault) -> None:
        self._op_id, self._step, self._fault = op_id, step, fault

    @property
    def was_met(self) -> bool:
        return self._step in self.seen

    def free(self) -> None:
        """Free disk space."""
        self._is_full = False

    def make_folder(self, folder: Path) -> None:
        self._check()
        super().make_folder(folder)

    def write(self, path: Path, content: bytes, mode: int) -> None:
        if self._op_id and path.name == f".{self._op_id}.json.draft":
            self._trigger_fault(step_in(content))
        self._check(writes=True)
        super().write(path, content, mode)

    def rename(self, old: Path, new: Path) -> None:
        self._check()
        super().rename(old, new)
        if self._dies_at_rename:
            self._die()

    def symlink(self, link: Path, target: str) -> None:
        self._check(writes=True)
        super().symlink(link, target)

    def sync(self, path: Path) -> None:
        self._check()
        super().sync(path)

    def remove(self, folder: Path) -> None:
        if self._op_id and folder.exists():
            self._trigger_fault(Step.CLEAN_UP)
        self._check()
        super().remove(folder)

    def _trigger_fault(self, step: str) -> None:
        if not step or step in self.seen:
            return
        self.seen.append(step)
        if step != self._step:
            return
        match self._fault:
            case Fault.KILL_BEFORE:
                self._die()
            case Fault.KILL_AFTER:
                self._dies_at_rename = True
            case Fault.STOP:
                self.on_stop()
            case Fault.FULL | Fault.FULL_FOR_GOOD:
                self._is_full = True
                if self._fault is Fault.FULL_FOR_GOOD:
                    (self._home / "reserve").unlink(missing_ok=True)

    def _die(self) -> None:
        self._is_dead = True
        raise Killed

    def _check(self, *, writes: bool = False) -> None:
        if self._is_dead:
            raise Killed
        if writes and self._is_full and not self._has_room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _has_room(self) -> bool:
        """The released reserve is enough for all writes of a plan."""
        return self._fault is Fault.FULL and not (self._home / "reserve").exists()


def step_in(content: bytes) -> str:
    """Return the step that a journal entry records."""
    entry = json.loads(content)
    if entry["standing"] == "ended":
        return Step.END
    plan = entry.get("plan")
    return (plan["done"][-1] if plan["done"] else PLANNED) if plan else ""


class AgentRun:
    """One agent process without a NATS connection; it can be stopped or killed."""

    def __init__(self, home: Path, http: httpx2.AsyncClient, disk: Disk | None = None, **also: Any) -> None:
        first = FIRST_PORT + crc32(str(home).encode()) % PORT_RANGES * PORTS
        settings = AgentSettings(
            home=home,
            name="node",
            disk_headroom=0,
            stop_grace=2,
            health_timeout=30,
            backend_first_port=first,
            backend_last_port=first + PORTS - 1,
            **also,
        )
        home.mkdir(exist_ok=True)
        self.home = home
        self.assembly = AgentAssembly(settings, http, lambda: ("", ""), disk)
        self.reporter = RecordingReporter()
        self.operations = NodeOperations(
            self.assembly.journal, self.assembly.installer, self.reporter, progress_every=1.0
        )
        self.reported: list[Outcome] = []

    async def begin(self) -> "AgentRun":
        self.reported = await self.assembly.recover()
        return self

    async def send(self, command: Command) -> CommandReply:
        reply = await self.operations.command(command)
        assert reply is not None
        return reply

    async def ask(self, command: Command) -> OpReply:
        return await self.operations.ask(OpQuestion(op_id=command.op_id))

    async def cancel(self, command: Command) -> CancelReply:
        return await self.operations.cancel(CancelCommand(op_id=command.op_id))

    async def outcome_of(self, command: Command) -> Outcome:
        before = len(self.reporter.outcomes)
        reply = await self.send(command)
        if reply.outcome is not None:
            return reply.outcome
        await until(lambda: len(self.reporter.outcomes) > before, within=LONG, pause=0.01)
        return self.reporter.outcomes[-1]

    async def serves(self, family: str, version: str | None) -> None:
        """Wait until exactly the expected processes run, from that version."""

        def versions() -> list[str]:
            return [
                each.record.folder.name for each in self.assembly.supervisor.serving() if each.record.family == family
            ]

        await until(lambda: versions() == ([version] if version else []), within=LONG, pause=0.01)

    async def close(self) -> None:
        """Stop as SIGTERM does; the backends keep running."""
        await self.operations.close()
        await self.assembly.close()

    async def killed(self) -> None:
        """Stop as kill -9 does: nothing is awaited or written."""
        self.assembly.supervisor.detach()
        for task in list(self.operations._background_tasks):
            task.cancel()
        await asyncio.gather(*self.operations._background_tasks, return_exceptions=True)
        self.assembly.journal.close()
        self.assembly._threads.close()


@contextmanager
def quiet_loop() -> Iterator[None]:
    """Silence the loop's reports of tasks that end with `Killed`, which is expected."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(_report)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Killed):
        loop.default_exception_handler(context)

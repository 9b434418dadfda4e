"""Faults at the boundaries of a plan's steps, and one life of a node's workshop after another."""

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

from agent.durable import Disk
from agent.operations import Operations
from agent.plan import Step
from agent.settings import AgentSettings
from agent.workshop import Workshop
from contracts.messages import CancelCommand, CancelReply, Command, CommandReply, OpQuestion, OpReply, Outcome
from tests.agent.desks import Notes
from tests.agent.nodes import LONG
from tests.agent.waiting import until

PLANNED = "planned"
"""the boundary before the first step: the plan itself is written"""


class Killed(BaseException):
    """The process is gone: nothing catches this, and the disk does nothing any more."""


FIRST_PORT, PORT_RANGES, PORTS = 23000, 350, 20
"""each home has ports of its own: a look whether one is free holds it for a moment"""


class Fault(Enum):
    KILL_BEFORE = "killed before it is recorded"
    KILL_AFTER = "killed after it is recorded"
    STOP = "stopped"
    FULL = "disk full"
    FULL_FOR_GOOD = "disk full without a reserve"


class Boundary(Disk):
    """Meets its fault when the journal is told of one step of one operation."""

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
        """Somebody has made room."""
        self._is_full = False

    def make_folder(self, folder: Path) -> None:
        self._check()
        super().make_folder(folder)

    def write(self, path: Path, content: bytes, mode: int) -> None:
        if self._op_id and path.name == f".{self._op_id}.json.draft":
            self._meet(_step_in(content))
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
            self._meet(Step.CLEAN_UP)
        self._check()
        super().remove(folder)

    def _meet(self, step: str) -> None:
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
        """The megabyte of the reserve is enough for all that a plan writes."""
        return self._fault is Fault.FULL and not (self._home / "reserve").exists()


def _step_in(content: bytes) -> str:
    """What an entry of the journal says that was not said before."""
    entry = json.loads(content)
    if entry["standing"] == "ended":
        return Step.END
    plan = entry.get("plan")
    return (plan["done"][-1] if plan["done"] else PLANNED) if plan else ""


class Life:
    """One process of an agent, without its link: it can end as a process ends."""

    def __init__(self, home: Path, http: httpx2.AsyncClient, disk: Disk | None = None) -> None:
        first = FIRST_PORT + crc32(str(home).encode()) % PORT_RANGES * PORTS
        settings = AgentSettings(
            home=home,
            name="node",
            disk_headroom=0,
            stop_grace=2,
            health_timeout=30,
            backend_first_port=first,
            backend_last_port=first + PORTS - 1,
        )
        home.mkdir(exist_ok=True)
        self.home = home
        self.shop = Workshop(settings, http, lambda: ("", ""), disk)
        self.notes = Notes()
        self.desk = Operations(self.shop.journal, self.shop.installer, self.notes, progress_every=1.0)
        self.told: list[Outcome] = []

    async def begin(self) -> "Life":
        self.told = await self.shop.take_stock()
        return self

    async def send(self, command: Command) -> CommandReply:
        reply = await self.desk.command(command)
        assert reply is not None
        return reply

    async def ask(self, command: Command) -> OpReply:
        return await self.desk.ask(OpQuestion(op_id=command.op_id))

    async def cancel(self, command: Command) -> CancelReply:
        return await self.desk.cancel(CancelCommand(op_id=command.op_id))

    async def outcome_of(self, command: Command) -> Outcome:
        before = len(self.notes.outcomes)
        reply = await self.send(command)
        if reply.outcome is not None:
            return reply.outcome
        await until(lambda: len(self.notes.outcomes) > before, within=LONG, pause=0.01)
        return self.notes.outcomes[-1]

    async def serves(self, family: str, version: str | None) -> None:
        """Until exactly what should run runs, from that version."""

        def versions() -> list[str]:
            return [each.record.folder.name for each in self.shop.supervisor.serving() if each.record.family == family]

        await until(lambda: versions() == ([version] if version else []), within=LONG, pause=0.01)

    async def close(self) -> None:
        """As SIGTERM does it: the backends go on."""
        await self.desk.close()
        await self.shop.close()

    async def killed(self) -> None:
        """As kill -9 does it: nothing is awaited, nothing is written."""
        self.shop.supervisor.let_go()
        for task in list(self.desk._behind):
            task.cancel()
        await asyncio.gather(*self.desk._behind, return_exceptions=True)
        self.shop.journal.close()
        self.shop._threads.close()


@contextmanager
def quiet_loop() -> Iterator[None]:
    """Tasks that die of `Killed` are what the test is about: the loop need not report them."""
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

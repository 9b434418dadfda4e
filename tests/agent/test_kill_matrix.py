"""Every step of every plan, every state of the backend, every fault: one agreed end, and one of two trees.

The cells are made from `agent.plan.steps_of`: a step that is added there is killed here.
"""

import asyncio
import functools
import hashlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
import pytest

from agent.durable import target_of
from agent.plan import Step, steps_of
from contracts.messages import Answer, Command, Installed, OpStanding, Outcome, Result, UpgradePolicy
from domain.operation import Kind, Reason
from tests.agent.archives import built, regular
from tests.agent.faults_of_plans import PLANNED, Boundary, Fault, Life, quiet_loop
from tests.agent.waiting import until

AT_ONCE = 8
MARKS = {Fault.FULL_FOR_GOOD: pytest.mark.long}
"""2026-11-18: one run in four hung in a rollback whose disk had no reserve either; `make chaos` has these"""
STATES = ("stopped", "running", "sick")
SERVER = """import socket, sys
host, port = sys.argv[-1].rsplit(":", 1)
with socket.create_server((host, int(port))) as server:
    while True:
        link, _ = server.accept()
        with link:
            link.recv(4096)
            link.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
"""


@functools.cache
def backend(version: str, *, healthy: bool = True) -> bytes:
    run = f'#!/bin/sh\nexec "{sys.executable}" -I -S server.py "$@"\n' if healthy else "#!/bin/sh\nexit 3\n"
    return built(regular("run.sh", run.encode()), regular("server.py", SERVER.encode()), regular(version, b""))


@dataclass(frozen=True)
class Case:
    """A change of a backend: what was installed before, in that order, and what is asked for."""

    name: str
    kind: Kind
    before: tuple[str, ...]
    version: str = ""
    policy: UpgradePolicy = UpgradePolicy.RESTART
    force: bool = False

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.kind, self.policy)

    @property
    def old(self) -> tuple[str, str]:
        """What serves, and what did before; an empty name is nothing."""
        padded = ("", "", *self.before)
        return padded[-1], padded[-2]


CASES = [
    Case("install", Kind.INSTALL, (), "1"),
    Case("forced install", Kind.INSTALL, ("1", "2"), "2", force=True),
    Case("upgrade restart", Kind.UPGRADE, ("1", "2"), "3"),
    Case("upgrade overlap", Kind.UPGRADE, ("1", "2"), "3", UpgradePolicy.OVERLAP),
    Case("rollback", Kind.ROLLBACK, ("1", "2"), "1"),
    Case("removal", Kind.REMOVE, ("1", "2")),
]


@dataclass(frozen=True)
class Cell:
    case: Case
    state: str
    step: str
    fault: Fault

    @property
    def is_running(self) -> bool:
        return self.state != "stopped"

    @property
    def is_sick(self) -> bool:
        """The new version does not become healthy."""
        return self.state == "sick" and self.case.kind is not Kind.REMOVE

    @property
    def is_reached(self) -> bool:
        """After a start that fails the plan goes back."""
        steps = [PLANNED, *self.case.steps]
        return not self.is_sick or not steps.index(Step.START) <= steps.index(self.step) < steps.index(Step.END)

    @property
    def ends_by_itself(self) -> bool | None:
        """Whether the next agent reports the end without being asked again; None where either is right."""
        steps = [PLANNED, *self.case.steps]
        decisive = steps.index(Step.END if self.is_sick else Step.PROVEN)
        match self.fault:
            case Fault.KILL_BEFORE:
                return steps.index(self.step) > decisive or not self.is_reached
            case Fault.KILL_AFTER:
                return steps.index(self.step) >= decisive or not self.is_reached
            case Fault.STOP | Fault.FULL:
                return True
        return None


class Bench:
    """Archives and homes, made once; every cell begins with a copy."""

    def __init__(self, folder: Path, http: httpx2.AsyncClient) -> None:
        self.folder = folder
        self.http = http

    def command(self, op_id: str, kind: Kind, version: str, *, healthy: bool = True, **fields: object) -> Command:
        content = backend(version, healthy=healthy) if version else b""
        digest = hashlib.sha256(content).hexdigest()
        archive = self.folder / digest
        if not archive.exists():
            archive.write_bytes(content)
        named = {"op_id": op_id, "kind": kind, "version": version, "family": "echo", "backend": "echo", "decision": 1}
        return Command.model_validate({**named, "uri": archive.as_uri(), "sha256": digest, **fields})

    async def home(self, case: Case, state: str) -> Path:
        """What was installed before; what a rollback leads to may be sick, because nobody has started it."""
        home = self.folder / f"{case.name} {state}".replace(" ", "-")
        life = await Life(home, self.http).begin()
        for version in case.before:
            is_sick = case.kind is Kind.ROLLBACK and state == "sick" and version == case.version
            outcome = await life.outcome_of(self.command(f"v{version}", Kind.INSTALL, version, healthy=not is_sick))
            assert outcome.result is Result.SUCCEEDED, outcome.error
        await life.close()
        return home

    def asked(self, cell: Cell) -> Command:
        case = cell.case
        return self.command(
            "op",
            case.kind,
            case.version,
            healthy=not cell.is_sick,
            force=case.force,
            policy=case.policy,
            start=cell.is_running and not case.before,
        )

    async def start_old(self, life: Life, cell: Cell) -> None:
        if not cell.is_running or not cell.case.before:
            return
        version = cell.case.before[-1]
        outcome = await life.outcome_of(self.command("start", Kind.INSTALL, version, start=True))
        assert outcome.result is Result.SUCCEEDED, outcome.error
        if cell.state == "sick" and cell.case.kind is Kind.REMOVE:
            (keeper,) = life.shop.supervisor.of("echo")
            os.killpg(keeper.record.pid, signal.SIGKILL)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with httpx2.AsyncClient(verify=False) as http:  # sources are files: nobody is asked
        yield Bench(tmp_path, http)
    there = psutil.process_iter(["cwd", "cmdline"])
    assert not [each.info for each in there if (each.info["cwd"] or "").startswith(str(tmp_path))]


@pytest.mark.parametrize("fault", [pytest.param(each, id=each.value, marks=MARKS.get(each, ())) for each in Fault])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_whatever_happens_at_a_step_there_is_one_end_and_one_of_two_trees(
    bench: Bench, case: Case, state: str, fault: Fault
):
    template = await bench.home(case, state)
    turns = asyncio.Semaphore(AT_ONCE)

    async def live_through(cell: Cell) -> None:
        async with turns:
            home = template.with_name(f"{template.name}-{cell.step}")
            await asyncio.to_thread(_copy, template, home)
            try:
                await _live_through(bench, home, cell)
            except BaseException as error:
                error.add_note(f"{cell}")
                raise

    with quiet_loop():
        async with asyncio.TaskGroup() as group:
            for step in (PLANNED, *case.steps):
                group.create_task(live_through(Cell(case, state, str(step), fault)))


def _copy(template: Path, home: Path) -> None:
    shutil.copytree(template, home, symlinks=True, ignore=shutil.ignore_patterns("reserve"))


async def _live_through(bench: Bench, home: Path, cell: Cell) -> None:
    disk = Boundary(home)
    life = await Life(home, bench.http, disk).begin()
    await bench.start_old(life, cell)
    asked = bench.asked(cell)
    old = pointers(home)
    disk.arm(asked.op_id, cell.step, cell.fault)
    await _meet_fault(life, disk, asked, cell.fault)
    assert disk.was_met == cell.is_reached or cell.step == Step.CLEAN_UP, disk.seen
    disk.free()
    again = await Life(home, bench.http).begin()
    try:
        await _check_restart(again, cell, asked, old)
        await _check_end(again, cell, asked, old)
    finally:
        await again.shop.stop_backends()
        await again.close()


async def _meet_fault(life: Life, disk: Boundary, asked: Command, fault: Fault) -> None:
    """Until this life is over, in the way of the fault."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def stop_soon() -> None:
        loop.call_soon_threadsafe(stop.set)

    disk.on_stop = stop_soon
    reply = await life.send(asked)
    assert reply.answer is Answer.ACCEPTED
    job = life.desk._jobs.get(asked.op_id)
    running = [task for task in life.desk._behind if task.get_coro().__name__ == "_run"]  # type: ignore[union-attr]
    if fault is Fault.STOP and job is not None:
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([*running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
    elif running:
        await asyncio.wait(running)
    if fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER):
        await life.killed()
    else:
        await life.close()


async def _check_restart(life: Life, cell: Cell, asked: Command, old: tuple[str, str]) -> None:
    """Before anybody says another word."""
    known = await life.ask(asked)
    assert known.standing in (OpStanding.INTERRUPTED, OpStanding.ENDED)
    is_new = known.outcome is not None and known.outcome.result is Result.SUCCEEDED
    if is_new:
        await _check_new(life, cell, old)
    else:
        await _check_old(life, cell, old)
    if cell.ends_by_itself is not None:
        assert (known.standing is OpStanding.ENDED) == cell.ends_by_itself
    if known.standing is OpStanding.INTERRUPTED:
        assert known.outcome is not None
        assert known.outcome in life.told


async def _check_end(life: Life, cell: Cell, asked: Command, old: tuple[str, str]) -> None:
    """Sent again it ends, once; with room on the disk a failure for lack of it is tried by a newer decision."""
    outcome = await life.outcome_of(asked)
    if outcome.reason is Reason.NO_DISK:
        await _check_old(life, cell, old)
        asked = asked.model_copy(update={"decision": 2})
        outcome = await life.outcome_of(asked)
    if cell.is_sick:
        reason = Reason.ROLLED_BACK if cell.case.before else Reason.DID_NOT_START
        assert (outcome.result, outcome.reason) == (Result.FAILED, reason), outcome.error
        await _check_old(life, cell, old)
    else:
        assert (outcome.result, outcome.changed) == (Result.SUCCEEDED, True), outcome.error
        assert (_version(outcome.before), _version(outcome.after)) == (cell.case.old[0], cell.case.version)
        await _check_new(life, cell, old)
    await _check_is_repeated(life, asked, outcome)


async def _check_is_repeated(life: Life, asked: Command, outcome: Outcome) -> None:
    before = pointers(life.home)
    reply = await life.send(asked)
    assert reply.outcome is not None
    assert (reply.answer, reply.outcome.result, pointers(life.home)) == (Answer.ENDED, outcome.result, before)
    folders = {path.name for path in (life.home / "backends").glob("echo/*") if path.is_dir() and not path.is_symlink()}
    assert folders == {name for name in before if name}
    assert not list((life.home / "backends").glob(".removed-*"))


async def _check_old(life: Life, cell: Cell, old: tuple[str, str]) -> None:
    assert pointers(life.home) == old
    for name in filter(None, old):
        assert (life.home / "backends" / "echo" / name / "run.sh").is_file()
    await life.serves("echo", old[0] if cell.is_running else None)


async def _check_new(life: Life, cell: Cell, old: tuple[str, str]) -> None:
    current, previous = pointers(life.home)
    if cell.case.kind is Kind.REMOVE:
        assert (current, previous) == ("", "")
        return await life.serves("echo", None)
    assert previous == old[0]
    assert (life.home / "backends" / "echo" / current / cell.case.version).is_file()
    assert current != old[0]
    return await life.serves("echo", current if cell.is_running else None)


def pointers(home: Path) -> tuple[str, str]:
    folder = home / "backends" / "echo"
    return target_of(folder / "current") or "", target_of(folder / "previous") or ""


def _version(installed: Installed | None) -> str:
    return installed.version if installed is not None else ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_every_declared_step_is_met_in_its_order(bench: Bench, case: Case):
    """Without this, a step that is declared and never taken would have cells that prove nothing."""
    home = await bench.home(case, "running")
    disk = Boundary(home)
    life = await Life(home, bench.http, disk).begin()
    cell = Cell(case, "running", "", Fault.STOP)
    await bench.start_old(life, cell)
    asked = bench.asked(cell)
    disk.arm(asked.op_id, "none", Fault.STOP)
    assert (await life.outcome_of(asked)).result is Result.SUCCEEDED
    has_leftovers = case.kind not in (Kind.INSTALL, Kind.ROLLBACK) or case.force
    assert disk.seen == [PLANNED, *(case.steps if has_leftovers else case.steps[:-1])]
    await until(lambda: not life.desk.open_ops())
    await life.shop.stop_backends()
    await life.close()


def test_every_step_belongs_to_a_plan():
    declared = {step for case in CASES for step in case.steps}
    assert declared == set(Step) - {Step.UNKNOWN}
    assert {(case.kind, case.policy) for case in CASES} >= {
        (Kind.INSTALL, UpgradePolicy.RESTART),
        (Kind.UPGRADE, UpgradePolicy.RESTART),
        (Kind.UPGRADE, UpgradePolicy.OVERLAP),
        (Kind.ROLLBACK, UpgradePolicy.RESTART),
        (Kind.REMOVE, UpgradePolicy.RESTART),
    }

"""Every step of every plan, every state of the backend, every fault: one outcome and a valid tree.

The cells are made from `nodesmith.agent.operations.change_plan.steps_of`: a step that is added there is killed here.
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
import pytest

from nodesmith.agent.disk.durable_files import target_of
from nodesmith.agent.operations.change_plan import Step, steps_of
from nodesmith.contracts.nats.messages import (
    Answer,
    Command,
    Installed,
    NodeOperationStatus,
    Outcome,
    Result,
    UpgradePolicy,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.archives import built, regular
from tests.agent.plan_faults import PLANNED, AgentRun, Boundary, Fault, quiet_loop
from tests.agent.waiting import until
from tests.processes import working_below

AT_ONCE = 8
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
    """A change of a backend: the versions installed before, in order, and the command."""

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
        """Return the current and the previous version; empty means none."""
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
        """Whether the step is reached; after a failed start the plan is rolled back instead."""
        steps = [PLANNED, *self.case.steps]
        return not self.is_sick or not steps.index(Step.START) <= steps.index(self.step) < steps.index(Step.END)

    @property
    def ends_by_itself(self) -> bool | None:
        """Whether the restarted agent reports the outcome without a repeated command; None: both are valid."""
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
    """Archives and homes, built once; every cell starts with a copy."""

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
        """Install the earlier versions; the target of a rollback may be unhealthy, as it was not started."""
        home = self.folder / f"{case.name} {state}".replace(" ", "-")
        life = await AgentRun(home, self.http).begin()
        for version in case.before:
            is_sick = case.kind is Kind.ROLLBACK and state == "sick" and version == case.version
            outcome = await life.outcome_of(self.command(f"v{version}", Kind.INSTALL, version, healthy=not is_sick))
            assert outcome.result is Result.SUCCEEDED, outcome.error
        await life.close()
        return home

    def requested(self, cell: Cell) -> Command:
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

    async def start_old(self, life: AgentRun, cell: Cell) -> None:
        if not cell.is_running or not cell.case.before:
            return
        version = cell.case.before[-1]
        outcome = await life.outcome_of(self.command("start", Kind.INSTALL, version, start=True))
        assert outcome.result is Result.SUCCEEDED, outcome.error
        if cell.state == "sick" and cell.case.kind is Kind.REMOVE:
            (keeper,) = life.assembly.supervisor.of("echo")
            os.killpg(keeper.record.pid, signal.SIGKILL)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with httpx2.AsyncClient(verify=False) as http:  # sources are files, so no request is sent
        yield Bench(tmp_path, http)
    assert working_below(tmp_path) == []


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_any_fault_at_a_step_leads_to_one_outcome_and_a_valid_tree(
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
    life = await AgentRun(home, bench.http, disk).begin()
    await bench.start_old(life, cell)
    requested = bench.requested(cell)
    old = pointers(home)
    disk.arm(requested.op_id, cell.step, cell.fault)
    await _meet_fault(life, disk, requested, cell.fault)
    assert disk.was_met == cell.is_reached or cell.step == Step.CLEAN_UP, disk.seen
    disk.free()
    again = await AgentRun(home, bench.http).begin()
    try:
        await _check_restart(again, cell, requested, old)
        await _check_end(again, cell, requested, old)
    finally:
        await again.assembly.stop_backends()
        await again.close()


async def _meet_fault(life: AgentRun, disk: Boundary, requested: Command, fault: Fault) -> None:
    """Run the agent until the fault ends it."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def stop_soon() -> None:
        loop.call_soon_threadsafe(stop.set)

    disk.on_stop = stop_soon
    reply = await life.send(requested)
    assert reply.answer is Answer.ACCEPTED
    job = life.operations._jobs.get(requested.op_id)
    running = [task for task in life.operations._background_tasks if task.get_coro().__name__ == "_run"]  # type: ignore[union-attr]
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


async def _check_restart(life: AgentRun, cell: Cell, requested: Command, old: tuple[str, str]) -> None:
    """Check the state before the command is repeated."""
    known = await life.ask(requested)
    assert known.standing in (NodeOperationStatus.INTERRUPTED, NodeOperationStatus.ENDED)
    is_new = known.outcome is not None and known.outcome.result is Result.SUCCEEDED
    if is_new:
        await _check_new(life, cell, old)
    else:
        await _check_old(life, cell, old)
    if cell.ends_by_itself is not None:
        assert (known.standing is NodeOperationStatus.ENDED) == cell.ends_by_itself
    if known.standing is NodeOperationStatus.INTERRUPTED:
        assert known.outcome is not None
        assert known.outcome in life.reported


async def _check_end(life: AgentRun, cell: Cell, requested: Command, old: tuple[str, str]) -> None:
    """Repeat the command until it ends, once; a failure for lack of space is retried with a newer decision."""
    outcome = await life.outcome_of(requested)
    if outcome.reason is Reason.NO_DISK:
        await _check_old(life, cell, old)
        requested = requested.model_copy(update={"decision": 2})
        outcome = await life.outcome_of(requested)
    if cell.is_sick:
        reason = Reason.ROLLED_BACK if cell.case.before else Reason.DID_NOT_START
        assert (outcome.result, outcome.reason) == (Result.FAILED, reason), outcome.error
        await _check_old(life, cell, old)
    else:
        assert (outcome.result, outcome.changed) == (Result.SUCCEEDED, True), outcome.error
        assert (_version(outcome.before), _version(outcome.after)) == (cell.case.old[0], cell.case.version)
        await _check_new(life, cell, old)
    await _check_is_repeated(life, requested, outcome)


async def _check_is_repeated(life: AgentRun, requested: Command, outcome: Outcome) -> None:
    before = pointers(life.home)
    reply = await life.send(requested)
    assert reply.outcome is not None
    assert (reply.answer, reply.outcome.result, pointers(life.home)) == (Answer.ENDED, outcome.result, before)
    folders = {path.name for path in (life.home / "backends").glob("echo/*") if path.is_dir() and not path.is_symlink()}
    assert folders == {name for name in before if name}
    assert not list((life.home / "backends").glob(".removed-*"))


async def _check_old(life: AgentRun, cell: Cell, old: tuple[str, str]) -> None:
    assert pointers(life.home) == old
    for name in filter(None, old):
        assert (life.home / "backends" / "echo" / name / "run.sh").is_file()
    await life.serves("echo", old[0] if cell.is_running else None)


async def _check_new(life: AgentRun, cell: Cell, old: tuple[str, str]) -> None:
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
async def test_every_declared_step_is_applied_in_order(bench: Bench, case: Case):
    """Guards the matrix: a declared step that is never applied would have cells that prove nothing."""
    home = await bench.home(case, "running")
    disk = Boundary(home)
    life = await AgentRun(home, bench.http, disk).begin()
    cell = Cell(case, "running", "", Fault.STOP)
    await bench.start_old(life, cell)
    requested = bench.requested(cell)
    disk.arm(requested.op_id, "none", Fault.STOP)
    assert (await life.outcome_of(requested)).result is Result.SUCCEEDED
    has_leftovers = case.kind not in (Kind.INSTALL, Kind.ROLLBACK) or case.force
    assert disk.seen == [PLANNED, *(case.steps if has_leftovers else case.steps[:-1])]
    await until(lambda: not life.operations.open_ops())
    await life.assembly.stop_backends()
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

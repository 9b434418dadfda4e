"""Every step of every load and unload, every fault: one outcome, and the processes that it says.

The cells are made from `nodesmith.agent.operations.change_plan.steps_of`, like those of `test_kill_matrix`.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from nodesmith.agent.operations.change_plan import Step, steps_of
from nodesmith.contracts.nats.messages import Answer, Command, NodeOperationStatus, Outcome, Result, UpgradePolicy
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from nodesmith.domain.replica import ReplicaState
from tests.agent.model_server import file_order, info, install, load, unload
from tests.agent.nodes import LONG
from tests.agent.plan_faults import PLANNED, AgentRun, Boundary, Fault, quiet_loop
from tests.agent.test_kill_matrix import AT_ONCE, _copy, _meet_fault
from tests.agent.waiting import until
from tests.processes import working_below


@dataclass(frozen=True)
class Case:
    """A change of a replica, and what runs under its key before."""

    name: str
    kind: Kind
    before: str = ""
    """nothing, the same revision, another revision, or a process that has died"""
    is_sick: bool = False
    """the model does not get ready"""

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.kind, UpgradePolicy.RESTART)


CASES = [
    Case("load", Kind.LOAD),
    Case("load over another revision", Kind.LOAD, "other"),
    Case("load that fails", Kind.LOAD, is_sick=True),
    Case("unload", Kind.UNLOAD, "same"),
    Case("unload of a dead process", Kind.UNLOAD, "dead"),
]


@dataclass(frozen=True)
class Cell:
    case: Case
    step: str
    fault: Fault

    @property
    def is_reached(self) -> bool:
        steps = [PLANNED, *self.case.steps]
        return not self.case.is_sick or not steps.index(Step.START) <= steps.index(self.step) < steps.index(Step.END)

    @property
    def ends_by_itself(self) -> bool | None:
        """Whether the restarted agent reports the outcome without a repeated command; None: both are valid."""
        steps = [PLANNED, *self.case.steps]
        decisive = steps.index(Step.END if self.case.is_sick else Step.PROVEN)
        match self.fault:
            case Fault.KILL_BEFORE:
                return steps.index(self.step) > decisive or not self.is_reached
            case Fault.KILL_AFTER:
                return steps.index(self.step) >= decisive or not self.is_reached
        return None


class Bench:
    def __init__(self, folder: Path, http: httpx2.AsyncClient) -> None:
        self.folder = folder
        self.http = http

    async def home(self) -> Path:
        """A home with the backend and the files of the model."""
        home = self.folder / "template"
        life = await AgentRun(home, self.http).begin()
        assert (await life.outcome_of(install(self.folder))).result is Result.SUCCEEDED
        await life.close()
        return home

    def requested(self, case: Case) -> Command:
        if case.kind is Kind.UNLOAD:
            return unload("op")
        arguments = ["--model", "{file}", *(["--fail"] if case.is_sick else [])]
        return load(self.folder, "op", revision=2, arguments=arguments, files=[file_order(self.folder, b"revision 2")])

    async def start_old(self, life: AgentRun, case: Case) -> None:
        if not case.before:
            return
        assert (await life.outcome_of(load(self.folder, "before"))).result is Result.SUCCEEDED
        if case.before == "dead":
            (keeper,) = life.assembly.supervisor.of("server")
            os.killpg(keeper.record.pid, signal.SIGKILL)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with httpx2.AsyncClient(verify=False) as http:  # sources are files; backends listen on loopback
        yield Bench(tmp_path, http)
    assert working_below(tmp_path) == []


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.value)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_any_fault_at_a_step_leads_to_one_outcome_and_the_processes_that_it_says(
    bench: Bench, case: Case, fault: Fault
) -> None:
    template = await bench.home()
    turns = asyncio.Semaphore(AT_ONCE)

    async def live_through(cell: Cell) -> None:
        async with turns:
            home = template.with_name(f"home-{cell.step}")
            await asyncio.to_thread(_copy, template, home)
            try:
                await _live_through(bench, home, cell)
            except BaseException as error:
                error.add_note(f"{cell}")
                raise

    with quiet_loop():
        async with asyncio.TaskGroup() as group:
            for step in (PLANNED, *case.steps):
                group.create_task(live_through(Cell(case, str(step), fault)))


async def _live_through(bench: Bench, home: Path, cell: Cell) -> None:
    disk = Boundary(home)
    life = await AgentRun(home, bench.http, disk).begin()
    await bench.start_old(life, cell.case)
    requested = bench.requested(cell.case)
    disk.arm(requested.op_id, cell.step, cell.fault)
    await _meet_fault(life, disk, requested, cell.fault)
    assert disk.was_met == cell.is_reached, disk.seen
    disk.free()
    again = await AgentRun(home, bench.http).begin()
    try:
        await _check_restart(bench, again, cell, requested)
        await _check_end(bench, again, cell, requested)
    finally:
        await again.assembly.stop_backends()
        await again.close()


async def _check_restart(bench: Bench, life: AgentRun, cell: Cell, requested: Command) -> None:
    """Check the state before the command is repeated: no process that no outcome tells."""
    known = await life.ask(requested)
    assert known.standing in (NodeOperationStatus.INTERRUPTED, NodeOperationStatus.ENDED)
    if known.outcome is not None and known.outcome.result is Result.SUCCEEDED:
        await _check_new(bench, life, cell, known.outcome)
    elif cell.case.kind is Kind.LOAD:
        await until(lambda: all(revision != 2 for revision in revisions(life)), within=LONG, pause=0.01)
    if cell.case.before == "other" and cell.step == PLANNED and cell.fault is Fault.KILL_BEFORE:
        await until(
            lambda: revisions(life) == [1], within=LONG, pause=0.01
        )  # nothing changes before the plan is written
    if cell.ends_by_itself is not None:
        assert (known.standing is NodeOperationStatus.ENDED) == cell.ends_by_itself
    if known.standing is NodeOperationStatus.INTERRUPTED and cell.fault is not Fault.STOP:
        assert known.outcome in life.reported


async def _check_end(bench: Bench, life: AgentRun, cell: Cell, requested: Command) -> None:
    """Repeat the command until it ends, once; a failure for lack of space is retried with a newer decision."""
    outcome = await life.outcome_of(requested)
    if outcome.reason is Reason.NO_DISK:
        requested = requested.model_copy(update={"decision": 2})
        outcome = await life.outcome_of(requested)
    if cell.case.is_sick:
        assert (outcome.result, outcome.reason) == (Result.FAILED, Reason.DID_NOT_START), outcome.error
        await until(lambda: working_below(life.home) == [], within=LONG, pause=0.01)
    else:
        assert outcome.result is Result.SUCCEEDED, outcome.error
        await _check_new(bench, life, cell, outcome)
    reply = await life.send(requested)
    assert reply.outcome is not None
    assert (reply.answer, reply.outcome.result) == (Answer.ENDED, outcome.result)
    assert life.assembly.journal.plans() == []
    assert list((life.home / "running").glob("*.pending")) == []


async def _check_new(bench: Bench, life: AgentRun, cell: Cell, outcome: Outcome) -> None:
    if cell.case.kind is Kind.UNLOAD:
        assert revisions(life) == []
        await until(lambda: working_below(life.home) == [], within=LONG, pause=0.01)
        return
    await until(lambda: revisions(life) == [2], within=LONG, pause=0.01)
    (report,) = life.assembly.replicas.next()[1]
    assert (await info(bench.http, report.address))["content"] == "revision 2"
    assert outcome.addresses == {"llama#0": report.address}
    assert life.assembly.replicas.last > outcome.report > 0
    await until(lambda: len(working_below(life.home)) == 1, within=LONG, pause=0.01)


def revisions(life: AgentRun) -> list[int]:
    """The revisions of the replicas that are ready."""
    reports = life.assembly.replicas.next()[1]
    return [report.revision for report in reports if report.state is ReplicaState.LOADED]


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_sick], ids=lambda case: case.name)
async def test_every_declared_step_is_applied_in_order(bench: Bench, case: Case) -> None:
    """Guards the matrix: a declared step that is never applied would have cells that prove nothing."""
    home = await bench.home()
    disk = Boundary(home)
    life = await AgentRun(home, bench.http, disk).begin()
    await bench.start_old(life, case)
    disk.arm("op", "none", Fault.STOP)
    assert (await life.outcome_of(bench.requested(case))).result is Result.SUCCEEDED
    assert disk.seen == [PLANNED, *case.steps]
    await life.assembly.stop_backends()
    await life.close()


def test_every_kind_of_a_replica_is_in_the_matrix() -> None:
    assert {case.kind for case in CASES} == {kind for kind in Kind if kind.rules.locks_replica}

"""Repair: the row of a run that was ended from outside ends, and its node is stopped."""

import asyncio
from dataclasses import replace

import pytest
from temporalio.client import Client, WorkflowFailureError

from nodesmith.contracts.nats.messages import CancelAnswer, CancelCommand, CancelReply, Outcome, Result
from nodesmith.contracts.temporal.dispatch import Ended
from nodesmith.contracts.temporal.operations import OperationInput, Run, operation_workflow_id
from nodesmith.domain.errors import NodeAway
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason, State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.repair import CLOSE_TIMEOUT, Repair
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.services.requested_work import RequestedBackend
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from tests.api.station import until
from tests.fakes.node_link import AcceptingProofs, SimulatedLink
from tests.fakes.operation_activities import Station, worker_of
from tests.services.conftest import Join, now
from tests.store.transitions import transition


@pytest.fixture
def link() -> SimulatedLink:
    return SimulatedLink()


@pytest.fixture
def repair(nodes: Nodes, operations: OperationTable, runs: TemporalRuns, link: SimulatedLink) -> Repair:
    return Repair(
        nodes=nodes,
        operations=operations,
        runs=runs,
        link=link,
        records=VerifiedRecords(operations, AcceptingProofs()),
        clock=now,
    )


async def terminated(admission: Admission, client: Client, join: Join) -> str:
    """An operation whose run was terminated in the Temporal Web UI."""
    node = await join()
    accepted = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo"), actor="ada")
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate("in the Web UI")
    return accepted.op_id


async def test_row_of_a_terminated_run_ends_and_the_node_is_stopped(
    admission: Admission, client: Client, join: Join, repair: Repair, link: SimulatedLink, operations: OperationTable
) -> None:
    """S13."""
    op_id = await terminated(admission, client, join)
    link.cancel_reply = CancelReply(op_id=op_id, answer=CancelAnswer.STOPPED)
    await until(repair.once, bool)  # visibility lags behind the termination
    row = await operations.find(op_id)
    assert row is not None
    assert (row.state, row.reason) == (State.FAILED, Reason.ENDED_OUTSIDE)
    assert row.ended_at is not None
    assert [command.op_id for command in link.cancels] == [op_id]


async def test_operation_finished_on_its_node_ends_as_succeeded(
    admission: Admission, client: Client, join: Join, repair: Repair, link: SimulatedLink, operations: OperationTable
) -> None:
    op_id = await terminated(admission, client, join)
    outcome = Outcome(op_id=op_id, result=Result.SUCCEEDED, changed=True)
    link.cancel_reply = CancelReply(op_id=op_id, answer=CancelAnswer.TOO_LATE, outcome=outcome)
    await until(repair.once, bool)  # visibility lags behind the termination
    row = await operations.find(op_id)
    assert row is not None
    assert row.state is State.SUCCEEDED


async def test_a_node_that_is_away_does_not_keep_the_row_open(
    admission: Admission, client: Client, join: Join, repair: Repair, link: SimulatedLink, operations: OperationTable
) -> None:
    op_id = await terminated(admission, client, join)
    link.cancel_reply = NodeAway()
    await until(repair.once, bool)  # visibility lags behind the termination
    row = await operations.find(op_id)
    assert row is not None
    assert row.state is State.FAILED


async def test_two_repairs_at_once_are_harmless_and_open_runs_are_left_alone(
    admission: Admission, client: Client, join: Join, repair: Repair, link: SimulatedLink, operations: OperationTable
) -> None:
    """S29."""
    node = await join()
    alive = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo"), actor="ada")
    op_id = await terminated(admission, client, join)
    link.cancel_reply = CancelReply(op_id=op_id, answer=CancelAnswer.STOPPED)
    await until(lambda: asyncio.gather(repair.once(), repair.once()), any)
    row, other = await operations.find(op_id), await operations.find(alive.op_id)
    assert row is not None
    assert other is not None
    assert (row.state, other.state) == (State.FAILED, State.QUEUED)
    assert alive.op_id not in [command.op_id for command in link.cancels if isinstance(command, CancelCommand)]


async def test_run_that_ends_during_repair_keeps_its_own_end(
    admission: Admission, client: Client, join: Join, repair: Repair, link: SimulatedLink, operations: OperationTable
) -> None:
    """The row was read as open, but the run wrote its end and closed before it was described."""
    op_id = await terminated(admission, client, join)

    class EndingNow(TemporalRuns):
        async def describe(self, workflow_id: str, run_id: str | None = None) -> Run | None:
            request = await operations.request(op_id)
            assert request is not None
            run = await super().describe(workflow_id, run_id)
            assert run is not None
            await operations.record(transition(request, State.SUCCEEDED, run_id=run.run_id, ended_at=now()))
            return run

    assert await replace(repair, runs=EndingNow(client)).once() == 0
    row = await operations.find(op_id)
    assert row is not None
    assert row.state is State.SUCCEEDED
    assert not link.cancels


# after a restore ----------------------------------------------------------------------------------------------


async def test_row_of_a_closed_run_ends_as_the_run_did(
    admission: Admission, client: Client, join: Join, repair: Repair, runs: TemporalRuns, database: Database
) -> None:
    """Protocol 3: PostgreSQL was restored from a backup; Temporal still has the result."""
    node, station = await join(), Station()
    async with worker_of(client, station, runs.queue):
        failed = Outcome(op_id="op", result=Result.FAILED, reason=Reason.NO_DISK, error="disk full")
        station.answer_dispatch(Ended(outcome=failed))
        accepted = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo"), actor="ada")
        await station.reached(State.FAILED)
        handle = client.get_workflow_handle(operation_workflow_id(node.id, "echo"))
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    await until(repair.once, bool)
    row = await OperationTable(database).find(accepted.op_id)
    assert row is not None
    assert (row.state, row.reason, row.detail) == (State.FAILED, Reason.NO_DISK, "disk full")


async def test_open_run_with_ended_or_missing_row_is_signalled(
    admission: Admission,
    join: Join,
    repair: Repair,
    runs: TemporalRuns,
    operations: OperationTable,
    client: Client,
    link: SimulatedLink,
) -> None:
    """Protocol 3: Temporal was restored from an older backup than PostgreSQL, or the reverse."""
    link.cancel_reply = NodeAway()
    asked = [await admission.ask(Kind.INSTALL, (await join()).id, RequestedBackend(backend="echo"), actor="ada")]
    asked.append(await admission.ask(Kind.INSTALL, (await join()).id, RequestedBackend(backend="echo"), actor="ada"))
    ended, untouched = [await operations.find(each.op_id) for each in asked]
    assert ended is not None
    assert untouched is not None
    request = await operations.request(ended.op_id)
    assert request is not None
    missing = request.model_copy(update={"op_id": new_op_id(), "node_id": f"gone-{new_op_id()}"})
    await runs.start(OperationInput(request=missing), intent="i")
    long_ago = now() - 2 * CLOSE_TIMEOUT
    await operations.record(transition(request, State.CANCELLED, run_id=ended.run_id, ended_at=long_ago))
    reported: list[str] = []

    class Telling(TemporalRuns):
        async def report_row_end(self, workflow_id: str, op_id: str) -> None:
            reported.append(op_id)

    telling = replace(repair, runs=Telling(client, queue=runs.queue))

    async def look() -> set[str]:
        await telling.once()
        return set(reported)

    await until(look, lambda seen: seen >= {ended.op_id, missing.op_id})
    assert untouched.op_id not in reported

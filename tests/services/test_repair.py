"""Repair: a run taken away from outside ends as an honest row, and the node stops."""

import asyncio
from dataclasses import replace

import pytest
from temporalio.client import Client

from contracts.messages import CancelAnswer, CancelCommand, CancelReply, Outcome, Result
from contracts.operation_http import InstallRequest
from contracts.temporal import Run, operation_workflow_id
from domain.errors import NodeAway
from domain.operation import Kind, Reason, State
from runtime.temporal import TemporalRuns
from services.admission import Admission
from services.repair import Repair
from store.nodes import Nodes
from store.operations import OperationTable
from tests.services.conftest import Join, now
from tests.services.links import PlayedLink
from tests.store.transitions import transition


@pytest.fixture
def link() -> PlayedLink:
    return PlayedLink()


@pytest.fixture
def repair(nodes: Nodes, operations: OperationTable, runs: TemporalRuns, link: PlayedLink) -> Repair:
    return Repair(nodes=nodes, operations=operations, runs=runs, link=link, clock=now)


async def terminated(admission: Admission, client: Client, join: Join) -> str:
    """An operation whose run somebody terminated in the Temporal Web UI."""
    node = await join()
    accepted = await admission.ask(Kind.INSTALL, node.id, InstallRequest(backend="echo"), actor="ada")
    await client.get_workflow_handle(operation_workflow_id(node.id, "echo")).terminate("in the Web UI")
    return accepted.jobID


async def test_a_terminated_run_ends_as_an_honest_row_and_the_node_is_stopped(
    admission: Admission, client: Client, join: Join, repair: Repair, link: PlayedLink, operations: OperationTable
) -> None:
    """S13."""
    op_id = await terminated(admission, client, join)
    link.cancel_reply = CancelReply(op_id=op_id, answer=CancelAnswer.STOPPED)
    await repair.once()
    row = await operations.find(op_id)
    assert row is not None
    assert (row.state, row.reason) == (State.FAILED, Reason.ENDED_OUTSIDE)
    assert row.ended_at is not None
    assert [command.op_id for command in link.cancels] == [op_id]


async def test_what_the_node_had_finished_is_told_as_finished(
    admission: Admission, client: Client, join: Join, repair: Repair, link: PlayedLink, operations: OperationTable
) -> None:
    op_id = await terminated(admission, client, join)
    outcome = Outcome(op_id=op_id, result=Result.SUCCEEDED, changed=True)
    link.cancel_reply = CancelReply(op_id=op_id, answer=CancelAnswer.TOO_LATE, outcome=outcome)
    await repair.once()
    row = await operations.find(op_id)
    assert row is not None
    assert row.state is State.SUCCEEDED


async def test_a_node_that_is_away_does_not_keep_the_row_open(
    admission: Admission, client: Client, join: Join, repair: Repair, link: PlayedLink, operations: OperationTable
) -> None:
    op_id = await terminated(admission, client, join)
    link.cancel_reply = NodeAway()
    await repair.once()
    row = await operations.find(op_id)
    assert row is not None
    assert row.state is State.FAILED


async def test_two_repairs_at_once_are_harmless_and_open_runs_are_left_alone(
    admission: Admission, client: Client, join: Join, repair: Repair, link: PlayedLink, operations: OperationTable
) -> None:
    """S29."""
    node = await join()
    alive = await admission.ask(Kind.INSTALL, node.id, InstallRequest(backend="echo"), actor="ada")
    op_id = await terminated(admission, client, join)
    link.cancel_reply = CancelReply(op_id=op_id, answer=CancelAnswer.STOPPED)
    await asyncio.gather(repair.once(), repair.once())
    row, other = await operations.find(op_id), await operations.find(alive.jobID)
    assert row is not None
    assert other is not None
    assert (row.state, other.state) == (State.FAILED, State.QUEUED)
    assert alive.jobID not in [command.op_id for command in link.cancels if isinstance(command, CancelCommand)]


async def test_a_run_that_ends_while_we_look_keeps_the_end_it_wrote(
    admission: Admission, client: Client, join: Join, repair: Repair, link: PlayedLink, operations: OperationTable
) -> None:
    """The row was read as open; when the run is described it has closed, as it does right after it wrote its end."""
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

"""PostgreSQL outages: the workflow backs off, and an unsent operation is not reported as lost."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import WorkflowFailureError

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import CancelPending, CancelResult, NodeUnreachable, NotAdmitted
from nodesmith.contracts.temporal.operations import CancelRequest, NodeBack
from nodesmith.domain.operation import State
from tests.deadlines import HANGS_S
from tests.fakes.operation_activities import QUICK
from tests.workflows.conftest import Begin


async def test_missing_row_that_cannot_be_written_is_waited_for(begin: Begin) -> None:
    """The permit answers and the write does not: each turn has its timer, and the row waits to be written once."""
    operation = await begin(at_once=NotAdmitted())
    station = operation.station
    for _ in range(300):
        station.answer_dispatch(NotAdmitted())
    station.database_is_up = False
    await station.refused_writes(4)
    assert len(station.dispatches) <= 4
    station.database_is_up = True
    await station.reached(State.QUEUED)
    assert len(station.rows) == 1
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id, force=True))
    assert (await operation.result()).state is State.CANCELLED


async def test_cancel_of_what_was_never_sent_waits_for_postgresql(begin: Begin) -> None:
    operation = await begin(at_once=NodeUnreachable())
    station = operation.station
    await station.reached(State.WAITING)
    station.database_is_up = False
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id, by="ada"))
    await station.refused_writes(1)
    station.database_is_up = True
    assert (await operation.result()).state is State.CANCELLED
    assert station.cancels.empty(), "no command was sent, so no cancel is"


async def test_operation_that_was_never_sent_expires_after_an_outage(begin: Begin) -> None:
    policy = QUICK.model_copy(update={"wait_for_node": timedelta(seconds=1), "lost_after": timedelta(days=1)})
    operation = await begin(policy, at_once=NodeUnreachable())
    station = operation.station
    station.is_absent = True
    await station.reached(State.WAITING)
    station.database_is_up = False
    await station.refused_writes(1)
    station.database_is_up = True
    with pytest.raises(WorkflowFailureError):
        await operation.result()
    assert station.rows[-1].state is State.EXPIRED


async def test_run_without_its_cancel_signal_carries_out_the_recorded_cancel(begin: Begin) -> None:
    """Temporal was restored to a moment before the cancel; the row says `cancelling`."""
    operation = await begin(at_once=NodeUnreachable())
    station = operation.station
    await station.reached(State.WAITING)
    station.sent = 1
    station.answer_dispatch(CancelPending(by="ada"))
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    assert (await asyncio.wait_for(station.cancels.get(), HANGS_S)).op_id == operation.op_id
    station.answer_cancel(CancelResult(stopped=True))
    assert (await operation.result()).state is State.CANCELLED
    assert station.rows[-1].cancelled_by == "ada"

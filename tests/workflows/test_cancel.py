"""Cancel in every state: the node stops before the operation is recorded as cancelled."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import CancelResult, NodeUnreachable, Silent
from nodesmith.contracts.temporal.operations import CancelRequest, NodeBack
from nodesmith.domain.operation import Reason, State
from tests.deadlines import HANGS_S
from tests.fakes.operation_activities import QUICK, Operation, Station, start, worker_of
from tests.workflows.conftest import Begin


async def ask_cancel(operation: Operation, *, op_id: str = "", force: bool = False) -> None:
    request = CancelRequest(op_id=op_id or operation.op_id, by="ada", detail="wrong shelf", force=force)
    await operation.handle.signal(names.SIGNAL_CANCEL, request)


async def test_unsent_operation_is_cancelled_at_once(begin: Begin) -> None:
    """S11."""
    operation = await begin(at_once=NodeUnreachable())
    await operation.station.reached(State.WAITING)
    await ask_cancel(operation)
    assert (await operation.result()).state is State.CANCELLED
    assert operation.station.cancels.empty(), "no command was sent, so no cancel is"
    last = operation.station.rows[-1]
    assert (last.cancelled_by, last.reason, last.detail) == ("ada", Reason.REQUESTED, "wrong shelf")


async def test_a_running_install_is_stopped_on_its_node_first(begin: Begin) -> None:
    """G1: cancel reaches the node."""
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    await operation.station.cancels.get()
    await operation.station.reached(State.CANCELLING)
    operation.station.answer_cancel(CancelResult(stopped=True, stopped_after_s=0.2))
    result = await operation.result()
    assert result.state is State.CANCELLED
    assert "node stopped after 0.2 s" in result.detail


async def test_cancel_is_repeated_until_a_slow_node_has_stopped(begin: Begin) -> None:
    """A local activity has a second and a half; what takes longer is not given up, and is shown meanwhile."""
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    await operation.station.cancels.get()
    await operation.station.cancels.get()
    await operation.station.reached(State.CANCELLING)
    operation.station.answer_cancel(CancelResult(stopped=True, stopped_after_s=3))
    assert "node stopped after 3.0 s" in (await operation.result()).detail


async def test_a_cancel_that_comes_too_late_reports_the_real_outcome(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    outcome = Outcome(op_id=operation.op_id, result=Result.SUCCEEDED, changed=True)
    operation.station.answer_cancel(CancelResult(outcome=outcome))
    result = await operation.result()
    assert result.state is State.SUCCEEDED
    assert "too late" in result.detail


async def test_a_cancel_for_another_operation_is_dropped(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation, op_id="another")
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_a_cancel_is_delivered_when_the_node_is_back(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    operation.station.answer_cancel(CancelResult(unreachable=True))
    await operation.station.cancels.get()
    await operation.station.reached(State.CANCELLING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await operation.result()).state is State.CANCELLED


async def test_forced_cancel_ends_without_the_node(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    operation.station.answer_cancel(CancelResult(unreachable=True))
    await operation.station.reached(State.CANCELLING)
    await ask_cancel(operation, force=True)
    assert (await operation.result()).state is State.CANCELLED
    assert operation.station.rows[-1].reason is Reason.FORCED


async def test_asking_twice_is_harmless(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    await ask_cancel(operation)
    # the second may come while the first is being sent: it is sent again then, which is safe
    for _ in range(2):
        operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await operation.result()).state is State.CANCELLED
    assert {row.seq: row.state for row in operation.station.rows} == {
        1: State.RUNNING,
        2: State.CANCELLING,
        3: State.CANCELLED,
    }


async def test_web_ui_cancel_acts_like_the_signal(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await operation.handle.cancel()
    operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await operation.result()).state is State.CANCELLED
    assert operation.station.rows[-1].cancelled_by == "Temporal Web UI"
    description = await operation.handle.describe()
    assert description.status is WorkflowExecutionStatus.COMPLETED


async def test_a_localai_worker_cannot_be_interrupted_and_its_outcome_stands(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await ask_cancel(operation)
    operation.station.answer_cancel(CancelResult(not_interruptible=True))
    await operation.station.reached(State.CANCELLING)
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_a_cancel_sent_while_no_worker_lives_is_carried_out_by_the_next(client: Client, queue: str) -> None:
    """S30, G3: a cancel outlives a restart, and what was cancelled does not come back."""
    station = Station()
    operation = await start(client, station, queue)
    await ask_cancel(operation)
    async with worker_of(client, station, queue):
        assert (await operation.result()).state is State.CANCELLED
    assert (station.dispatches, station.commands.empty(), station.cancels.empty()) == ([], True, True)
    assert station.states == [State.CANCELLED]


async def test_cancel_reaches_node_after_worker_crash_during_dispatch(client: Client, queue: str) -> None:
    """Promise 3, G3: a worker that died may have sent the command. The row knows, so the node has the last word."""
    station = Station()
    station.sent = 1
    operation = await start(client, station, queue)
    await ask_cancel(operation)
    async with worker_of(client, station, queue):
        order = await asyncio.wait_for(station.cancels.get(), HANGS_S)
        assert order.op_id == operation.op_id
        station.answer_cancel(CancelResult(unreachable=True))
        waiting = await station.reached(State.CANCELLING)
        assert waiting.until is not None
        await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
        outcome = Outcome(op_id=operation.op_id, result=Result.SUCCEEDED, changed=True)
        station.answer_cancel(CancelResult(outcome=outcome))
        result = await operation.result()
    assert (result.state, "too late" in result.detail) == (State.SUCCEEDED, True)
    assert station.dispatches == []


async def test_cancel_after_a_silent_dispatch_tells_the_node(begin: Begin) -> None:
    """The run itself recorded that a command may have left: it does not need the row for that."""
    operation = await begin(at_once=Silent())
    await operation.station.commands.get()
    operation.station.sent = 0
    await ask_cancel(operation)
    assert (await asyncio.wait_for(operation.station.cancels.get(), HANGS_S)).op_id == operation.op_id
    operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await operation.result()).state is State.CANCELLED


async def test_cancel_that_never_reaches_the_node_ends_as_lost(begin: Begin) -> None:
    policy = QUICK.model_copy(update={"lost_after": timedelta(seconds=0.3), "node_poll": timedelta(seconds=0.1)})
    operation = await begin(policy)
    await operation.begin_on_node()
    for _ in range(20):
        operation.station.answer_cancel(CancelResult(unreachable=True))
    await ask_cancel(operation)
    with pytest.raises(WorkflowFailureError):
        await operation.result()
    last = operation.station.rows[-1]
    assert (last.state, last.reason, last.cancelled_by) == (State.FAILED, Reason.LOST_NODE, "ada")
    assert "never reached the node" in last.detail


async def test_request_that_would_replace_a_sent_operation_is_dropped(client: Client, queue: str) -> None:
    station = Station()
    station.sent = 1
    operation = await start(client, station, queue)
    newer = CancelRequest(op_id=operation.op_id, why=Reason.SUPERSEDED, only_undispatched=True)
    await operation.handle.signal(names.SIGNAL_CANCEL, newer)
    station.send_result(operation.succeeded())
    async with worker_of(client, station, queue):
        assert (await operation.result()).state is State.SUCCEEDED
    assert station.cancels.empty()


async def test_a_cancel_during_a_back_off_needs_no_node_that_has_ended_its_try(begin: Begin) -> None:
    operation = await begin()
    operation.station.send_result(operation.failed(Reason.NODE_ERROR))
    await operation.station.seen(lambda station: State.WAITING in station.states)
    await ask_cancel(operation)
    operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await asyncio.wait_for(operation.result(), HANGS_S)).state is State.CANCELLED

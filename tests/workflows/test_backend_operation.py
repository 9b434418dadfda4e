"""The operation workflow, from request to end."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

import nodesmith.workflows.policy as options
from nodesmith.contracts.nats.messages import Installed, Outcome, Result
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import (
    Busy,
    CancelResult,
    DispatchResult,
    Ended,
    HeldBack,
    NatsUnreachable,
    NodeUnreachable,
    NotAdmitted,
    OrderNotValid,
    Refused,
    Silent,
    StoreUnreachable,
)
from nodesmith.contracts.temporal.operations import CancelRequest, NodeBack, OutcomeReport, RowEnd, RowEndNotice
from nodesmith.domain.operation import Reason, State
from nodesmith.workflows.backend_operation import BackendOperation
from tests.deadlines import HANGS_S
from tests.fakes.operation_activities import QUICK, Operation, Station, start, worker_of
from tests.workflows.conftest import Begin


async def ends_red(operation: Operation) -> ApplicationError:
    """The run fails, so that the Temporal Web UI shows it red; returns the error."""
    with pytest.raises(WorkflowFailureError) as raised:
        await operation.result()
    assert isinstance(raised.value.cause, ApplicationError)
    return raised.value.cause


async def test_an_install_that_the_node_finishes_succeeds(begin: Begin) -> None:
    operation = await begin()
    operation.station.send_result(operation.succeeded())
    result = await operation.result()
    assert result.state is State.SUCCEEDED
    assert operation.station.states == [State.RUNNING, State.SUCCEEDED]
    assert [row.seq for row in operation.station.rows] == [1, 2]
    assert operation.station.rows[-1].ended_at is not None


async def test_quick_operation_needs_no_follower(begin: Begin) -> None:
    outcome = Outcome(op_id="op", result=Result.SUCCEEDED, changed=True, after=Installed(name="echo", version="2"))
    operation = await begin(at_once=Ended(outcome=outcome))
    assert (await operation.result()).detail == "2"
    assert operation.station.states == [State.RUNNING, State.SUCCEEDED]
    assert operation.station.commands.empty()


async def test_only_a_failure_that_counts_raises_the_decision_number(begin: Begin) -> None:
    """Protocol 2: a lost worker attaches again with the same decision; another one would have the node try again."""
    operation = await begin()
    station = operation.station
    assert (await station.commands.get()).decision == 1
    station.send_result(Silent(accepted=True))
    await station.reached(State.STILL_INSTALLING)
    task = await station.commands.get()
    assert (task.decision, task.accepted) == (1, True)
    station.send_result(operation.failed(Reason.NODE_ERROR))
    assert (await station.commands.get()).decision == 2
    station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED
    assert [task.decision for task in station.dispatches] == [1, 2]


async def test_next_decision_is_above_the_one_that_the_node_knows(begin: Begin) -> None:
    """A run that was restored to an older moment counts from what the node reports."""
    operation = await begin()
    failure = operation.failed(Reason.NODE_ERROR)
    known = failure.model_copy(update={"outcome": failure.outcome.model_copy(update={"decision": 5})})
    operation.station.send_result(known)
    operation.station.send_result(operation.succeeded())
    await operation.result()
    assert [task.decision for task in operation.station.dispatches] == [1, 6]


async def test_ended_row_closes_the_run_before_anything_is_sent(client: Client, queue: str) -> None:
    """An end was written, and its workflow task was lost: executed again, it meets the end and sends nothing."""
    station = Station()
    station.row_end = RowEnd(state=State.FAILED, reason=Reason.BAD_DIGEST, detail="sha256 differs")
    operation = await start(client, station, queue)
    async with worker_of(client, station, queue):
        assert (await ends_red(operation)).type == Reason.BAD_DIGEST
    assert (station.commands.empty(), station.rows) == (True, [])


async def test_run_closes_as_its_row_when_a_write_is_refused(begin: Begin) -> None:
    operation = await begin()
    await operation.station.commands.get()
    operation.station.row_end = RowEnd(state=State.CANCELLED, reason=Reason.FORCED, detail="by hand")
    operation.station.send_result(operation.succeeded())
    result = await operation.result()
    assert (result.state, result.detail) == (State.CANCELLED, "by hand")


async def test_run_closes_as_its_row_when_the_monitor_says_so(begin: Begin) -> None:
    """Protocol 3: Temporal was restored to an older moment than PostgreSQL."""
    operation = await begin()
    await operation.station.commands.get()
    operation.station.row_end = RowEnd(state=State.CANCELLED, reason=Reason.FORCED)
    await operation.handle.signal(names.SIGNAL_ROW_ENDED, RowEndNotice(op_id=operation.op_id))
    assert (await operation.result()).state is State.CANCELLED


async def test_doubted_row_that_is_open_changes_nothing(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await operation.handle.signal(names.SIGNAL_ROW_ENDED, RowEndNotice(op_id=operation.op_id))
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_dispatch_without_a_row_writes_it_and_sends_again(begin: Begin) -> None:
    operation = await begin(at_once=NotAdmitted())
    operation.station.send_result(operation.succeeded())
    await operation.result()
    assert operation.station.states == [State.QUEUED, State.RUNNING, State.SUCCEEDED]
    assert len(operation.station.dispatches) == 2


async def test_dispatch_without_a_store_is_tried_again(begin: Begin) -> None:
    operation = await begin(at_once=StoreUnreachable())
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED
    assert len(operation.station.dispatches) == 2


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (NodeUnreachable(), Reason.NODE_AWAY),
        (NatsUnreachable(), Reason.NATS_DOWN),
        (HeldBack(why="freeze, by ada"), Reason.HELD),
    ],
    ids=["away", "nats is down", "held"],
)
async def test_a_dispatch_may_have_to_wait(begin: Begin, word: DispatchResult, reason: Reason) -> None:
    operation = await begin(at_once=word)
    waiting = await operation.station.reached(State.WAITING)
    assert (waiting.reason, waiting.dispatched_at) == (reason, None)
    assert operation.station.commands.empty()
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_node_return_causes_one_dispatch(begin: Begin) -> None:
    """A handled return is used up: an operation that must wait again does not retry in a loop."""
    operation = await begin(at_once=NodeUnreachable())
    operation.station.answer_dispatch(HeldBack(why="freeze, by ada"))
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    await operation.station.seen(lambda station: station.rows[-1].reason is Reason.HELD)
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id))
    assert (await operation.result()).state is State.CANCELLED
    assert len(operation.station.dispatches) == 2


async def test_a_refusal_at_once_is_the_end(begin: Begin) -> None:
    operation = await begin(at_once=Refused(why="This node takes no archive without a sha256 digest."))
    assert (await ends_red(operation)).type == Reason.REFUSED_BY_NODE
    assert operation.station.commands.empty()


async def test_no_op_is_not_reported_as_a_change(begin: Begin) -> None:
    """Promise 4: nor a no-op as a success that changed something."""
    operation = await begin()
    operation.station.send_result(operation.succeeded(changed=False))
    assert "nothing changed" in (await operation.result()).detail


async def test_the_row_says_running_as_soon_as_the_node_has_begun(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    status = await operation.status()
    assert (status.state, status.phase, status.dispatched) == (State.RUNNING, "downloading", True)
    operation.station.send_result(operation.succeeded())
    await operation.result()


async def test_an_absent_node_is_waited_for_and_its_return_wakes_the_operation(begin: Begin) -> None:
    """S27 and S28, superseded by G5: nothing is deleted after a quarter of an hour.

    S52: queued for an absent node is no failure.
    """
    operation = await begin(at_once=NodeUnreachable())
    waiting = await operation.station.reached(State.WAITING)
    assert waiting.reason is Reason.NODE_AWAY
    assert waiting.until is not None
    assert waiting.dispatched_at is None
    await operation.handle.signal(names.SIGNAL_NODE_BACK, NodeBack(node_id="node"))
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_what_waits_for_nats_does_not_expire(begin: Begin) -> None:
    """How long the node was away counts; that we could not ask it does not."""
    policy = QUICK.model_copy(update={"wait_for_node": timedelta(seconds=0.2), "node_poll": timedelta(seconds=0.1)})
    operation = await begin(policy, at_once=NatsUnreachable())
    for _ in range(4):
        operation.station.answer_dispatch(NatsUnreachable())
    waiting = await operation.station.reached(State.WAITING)
    assert (waiting.reason, waiting.until is not None) == (Reason.NATS_DOWN, True)
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_a_node_that_never_comes_expires_the_operation(begin: Begin) -> None:
    policy = QUICK.model_copy(update={"wait_for_node": timedelta(seconds=0.2), "node_poll": timedelta(seconds=0.1)})
    operation = await begin(policy, at_once=NodeUnreachable())
    operation.station.is_absent = True
    assert (await ends_red(operation)).type == Reason.NODE_NEVER_CAME
    assert operation.station.states[-1] is State.EXPIRED
    assert operation.station.states.count(State.WAITING) == 1, "looking again is not a change"


async def test_a_node_lost_with_work_on_it_fails_the_operation(begin: Begin) -> None:
    policy = QUICK.model_copy(update={"lost_after": timedelta(seconds=0.2), "node_poll": timedelta(seconds=0.1)})
    operation = await begin(policy)
    operation.station.send_result(NodeUnreachable(accepted=True))
    for _ in range(10):
        operation.station.send_result(NodeUnreachable())
    assert (await ends_red(operation)).type == Reason.LOST_NODE


async def test_a_permanent_error_ends_at_once_with_its_reason(begin: Begin) -> None:
    operation = await begin()
    operation.station.send_result(operation.failed(Reason.BAD_DIGEST, "sha256 differs"))
    error = await ends_red(operation)
    assert error.type == Reason.BAD_DIGEST
    assert operation.station.rows[-1].state is State.FAILED
    assert operation.station.rows[-1].detail == "sha256 differs"


async def test_a_failure_that_may_pass_is_tried_again_after_a_back_off(begin: Begin) -> None:
    """R82, R84: only real failures count, with back-off."""
    operation = await begin()
    operation.station.send_result(operation.failed(Reason.NODE_ERROR))
    operation.station.send_result(operation.succeeded())
    await operation.result()
    assert operation.station.states == [State.RUNNING, State.WAITING, State.RUNNING, State.SUCCEEDED]
    assert operation.station.rows[1].reason is Reason.BACK_OFF
    assert operation.station.rows[-1].attempt == 2


async def test_exhausted_attempts_end_as_a_dead_letter(begin: Begin) -> None:
    """S48, superseded: its row is kept and says why, instead of being deleted."""
    operation = await begin(QUICK.model_copy(update={"max_attempts": 3}))
    for _ in range(3):
        operation.station.send_result(operation.failed(Reason.DOWNLOAD_FAILED, "connection reset"))
    assert (await ends_red(operation)).type == Reason.ATTEMPTS_EXHAUSTED
    assert operation.station.rows[-1].state is State.DEAD_LETTER
    assert "connection reset" in operation.station.rows[-1].detail


async def test_a_source_that_is_down_never_costs_an_attempt(begin: Begin) -> None:
    operation = await begin(QUICK.model_copy(update={"max_attempts": 1}))
    for _ in range(3):
        operation.station.send_result(operation.failed(Reason.SOURCE_DOWN, "503", retry_after_s=0.01))
    operation.station.send_result(operation.succeeded())
    await operation.result()
    waits = [row for row in operation.station.rows if row.state is State.WAITING]
    assert [row.reason for row in waits] == [Reason.SOURCE_DOWN] * 3


async def test_no_answer_in_time_is_still_installing_and_never_an_attempt(begin: Begin) -> None:
    """H21, H22, H26, G8, S45: it stays visible, is no attempt, and becomes what really happened.

    S38, R83, promise 4: a timeout is never reported as a failure.
    """
    operation = await begin(QUICK.model_copy(update={"max_attempts": 1}))
    operation.station.send_result(Silent(accepted=True))
    row = await operation.station.reached(State.STILL_INSTALLING)
    assert row.attempt == 1
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_a_dead_worker_is_still_installing_and_the_next_one_attaches_again(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    operation.station.send_result(RuntimeError("the worker is gone"))
    await operation.station.reached(State.STILL_INSTALLING)
    again = await operation.station.commands.get()
    assert again.request.op_id == operation.op_id
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_outcome_that_arrives_as_a_signal_makes_the_run_ask_the_node(begin: Begin) -> None:
    operation = await begin()
    operation.station.send_result(NodeUnreachable(accepted=True))
    await operation.station.reached(State.WAITING)
    await operation.handle.signal(names.SIGNAL_OUTCOME, OutcomeReport(op_id=operation.op_id))
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_an_outcome_of_another_operation_is_dropped(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    await operation.handle.signal(names.SIGNAL_OUTCOME, OutcomeReport(op_id="another"))
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED


async def test_another_operation_on_the_node_is_stopped_and_the_command_sent_again(begin: Begin) -> None:
    """Design 4: the workflow holds the lock, so whoever is busy there has no owner."""
    operation = await begin(at_once=Busy(op_id="left-over"))
    operation.station.answer_cancel(CancelResult(stopped=True))
    operation.station.send_result(operation.succeeded())
    await operation.result()
    assert operation.station.cancels.get_nowait().op_id == "left-over"


async def test_a_deadline_stops_the_node_and_fails_the_operation(begin: Begin) -> None:
    operation = await begin(QUICK.model_copy(update={"deadline": timedelta(seconds=0.3)}))
    await operation.begin_on_node()
    operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await ends_red(operation)).type == Reason.DEADLINE
    assert (await operation.station.cancels.get()).op_id == operation.op_id


async def test_a_deadline_ends_an_operation_whose_attempts_fail_at_once(begin: Begin) -> None:
    """A source that refuses each connection is retried without limit, and no follower waits for the deadline."""
    down = Outcome(op_id="op", result=Result.FAILED, reason=Reason.SOURCE_DOWN, error="refused")
    policy = QUICK.model_copy(update={"deadline": timedelta(seconds=0.3)})
    operation = await begin(policy, at_once=Ended(outcome=down))
    operation.station.answer_cancel(CancelResult(stopped=True))
    operation.station.send_result(operation.succeeded())
    assert (await ends_red(operation)).type == Reason.DEADLINE
    assert len(operation.station.dispatches) == 1


async def test_a_database_that_is_away_delays_rows_but_loses_none(begin: Begin) -> None:
    operation = await begin()
    operation.station.database_is_up = False
    operation.station.send_result(operation.succeeded())
    await operation.station.refused_writes(2)
    description = await operation.handle.describe()
    assert description.status is WorkflowExecutionStatus.RUNNING, "it does not end before its row is written"
    operation.station.database_is_up = True
    await operation.result()
    assert operation.station.states == [State.RUNNING, State.SUCCEEDED]


async def test_a_cancel_waits_for_no_database(begin: Begin) -> None:
    operation = await begin()
    await operation.begin_on_node()
    operation.station.database_is_up = False
    await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id, by="ada"))
    order = await asyncio.wait_for(operation.station.cancels.get(), HANGS_S)
    assert order.op_id == operation.op_id
    operation.station.database_is_up = True
    operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await operation.result()).state is State.CANCELLED


async def test_a_command_waits_for_a_worker_and_is_carried_out_when_one_is_there(client: Client, queue: str) -> None:
    station = Station()
    operation = await start(client, station, queue)
    station.send_result(operation.succeeded())
    async with worker_of(client, station, queue):
        assert (await operation.result()).state is State.SUCCEEDED


async def test_run_that_no_api_admitted_fails_and_is_reported(
    client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody started it in Temporal: it looks for its order for a while, sends nothing, and is in the audit trail."""
    monkeypatch.setattr(options, "ORDER_WITHIN", timedelta(milliseconds=10))
    monkeypatch.setattr(options, "ORDER_PAUSE", timedelta(milliseconds=20))
    station = Station()
    for _ in range(3):
        station.answer_dispatch(NotAdmitted(has_order=False))
    async with worker_of(client, station, queue):
        operation = await start(client, station, queue)
        with pytest.raises(WorkflowFailureError):
            await operation.result()
    assert (station.rows[-1].state, station.rows[-1].reason) == (State.FAILED, Reason.NOT_ADMITTED)
    assert station.not_admitted == [operation.op_id]
    assert station.sent == 0


async def test_operation_waits_for_a_new_order_and_continues(begin: Begin) -> None:
    operation = await begin(at_once=OrderNotValid(why="The order has expired."))
    waiting = await operation.station.reached(State.WAITING)
    assert (waiting.reason, waiting.detail) == (Reason.ORDER, "The order has expired.")
    await operation.handle.signal(BackendOperation.node_back, NodeBack(node_id="n"))
    await operation.station.commands.get()
    operation.station.send_result(operation.succeeded())
    assert (await operation.result()).state is State.SUCCEEDED

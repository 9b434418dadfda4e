"""The projection of the operations."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesmith.api.views.operations import event_view
from nodesmith.contracts.nats.messages import Installed, Outcome, Progress, Result
from nodesmith.contracts.temporal.operations import RecordResult, RowEnd
from nodesmith.contracts.words import Words, describe
from nodesmith.domain.operation import ENDED, OPEN, Gauge, Phase, Reason, State
from nodesmith.domain.operation_filter import OperationFilter, OperationScope
from nodesmith.store.database import Database
from nodesmith.store.operations.history import History
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.permits import PermitTable
from tests.services.conftest import orders_on
from tests.store.clock import NOON, SetClock
from tests.store.transitions import a_request, transition


async def test_first_row_holds_the_whole_request(operations: OperationTable) -> None:
    request = a_request(note="because", batch_id="b1", retry_of="older")
    assert await operations.insert_queued(transition(request, State.QUEUED, seq=0))
    assert await operations.request(request.op_id) == request
    row = await operations.find(request.op_id)
    assert row is not None
    assert (row.state, row.backend, row.version, row.note, row.retry_of, row.run_id) == (
        (State.QUEUED, "echo", "1", "because", "older", "run-1")
    )
    assert describe(row).sentence == "queued"


async def test_unknown_operation_is_none(operations: OperationTable) -> None:
    assert await operations.find("nobody") is None
    assert await operations.request("nobody") is None


async def test_api_insert_never_overwrites_the_workflow(operations: OperationTable) -> None:
    request = a_request()
    assert (await operations.record(transition(request, State.RUNNING))).written
    assert not await operations.insert_queued(transition(request, State.QUEUED, at=99, seq=99))
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.state is State.RUNNING
    assert [event.state for event in await operations.timeline(request.op_id)] == [State.RUNNING]


async def test_workflow_with_a_clock_behind_ours_still_wins_over_the_api_insert(operations: OperationTable) -> None:
    request = a_request()
    await operations.insert_queued(transition(request, State.QUEUED, at=0, seq=0))
    assert (await operations.record(transition(request, State.RUNNING, at=-3600, seq=1))).written
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.state is State.RUNNING


SUCCEEDED_AT = 4


@settings(max_examples=25, deadline=None, derandomize=True)
@given(order=st.permutations(range(5)))
async def test_projection_cannot_go_backwards(database: Database, order: list[int]) -> None:
    operations, request = OperationTable(database), a_request()
    states = [State.WAITING, State.RUNNING, State.STILL_INSTALLING, State.RUNNING, State.SUCCEEDED]
    newest = -1
    for number in order:
        recorded = await operations.record(transition(request, states[number], at=number // 2, seq=number))
        assert recorded.written == (number > newest)
        assert (recorded.end is not None) == (newest == SUCCEEDED_AT)
        newest = max(newest, number)
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.state is State.SUCCEEDED
    numbers = [event.id for event in await operations.timeline(request.op_id)]
    assert numbers == sorted(numbers)


async def test_equal_transition_repeated_is_harmless(operations: OperationTable) -> None:
    running = transition(a_request(), State.RUNNING)
    assert (await operations.record(running)).written
    assert not (await operations.record(running)).written
    assert len(await operations.timeline(running.request.op_id)) == 1


async def test_transitions_that_were_held_up_are_written_together_in_order(operations: OperationTable) -> None:
    request = a_request()
    waiting = transition(request, State.WAITING, seq=1, reason=Reason.NODE_AWAY)
    running = transition(request, State.RUNNING, seq=2)
    assert (await operations.record(waiting, running)).written
    assert [event.state for event in await operations.timeline(request.op_id)] == [State.WAITING, State.RUNNING]


async def test_a_state_the_domain_does_not_know_is_refused(operations: OperationTable) -> None:
    with pytest.raises(Exception, match="ck_operations_state"):
        await operations.record(transition(a_request(), State.UNKNOWN))


async def test_end_records_versions_and_bytes(operations: OperationTable) -> None:
    request = a_request()
    outcome = Outcome(
        op_id=request.op_id,
        result=Result.SUCCEEDED,
        changed=True,
        before=Installed(name="echo", version="1"),
        after=Installed(name="echo", version="2", digest="cd"),
        bytes_fetched=700,
        bytes_reused=300,
    )
    await operations.record(transition(request, State.SUCCEEDED, outcome=outcome, ended_at=NOON))
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.before is not None
    assert row.after is not None
    assert (row.before.version, row.after.version, row.changed) == ("1", "2", True)
    assert (row.bytes_fetched, row.bytes_reused, row.ended_at) == (700, 300, NOON)


async def test_text_that_cannot_be_stored_does_not_stop_the_projection(operations: OperationTable) -> None:
    request = a_request(note="a\0b")
    outcome = Outcome(op_id=request.op_id, after=Installed(name="x\0"))
    assert (await operations.record(transition(request, State.FAILED, detail="said \0", outcome=outcome))).written
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.after is not None
    assert (row.detail, row.note, row.after.name) == ("said \ufffd", "a\ufffdb", "x\ufffd")


async def test_reason_has_a_message_and_a_remedy(operations: OperationTable) -> None:
    request = a_request()
    await operations.record(transition(request, State.FAILED, reason=Reason.NO_DISK, detail="3 GB missing"))
    row = await operations.find(request.op_id)
    assert row is not None
    assert describe(row) == Words(
        "failed: not enough disk space on the node (3 GB missing)", "Free space on the node, then retry."
    )


# gauges -------------------------------------------------------------------------------------------------------


def tick(op_id: str, *, done: int, phase: Phase = Phase.DOWNLOADING) -> Progress:
    gauge = {"bytes_done": done, "bytes_total": 100, "percentage": float(done), "rate": 5.0}
    return Progress(op_id=op_id, node_id="n1", phase=phase, **gauge)


async def test_gauge_that_another_node_sends_for_an_operation_is_not_written(operations: OperationTable) -> None:
    await operations.record(transition(request := a_request(), State.RUNNING))
    foreign = tick(request.op_id, done=99).model_copy(update={"node_id": "n2"})
    for each in (tick(request.op_id, done=10), foreign):
        await operations.write_gauges([each])
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.progress.bytes_done == 10


async def test_gauges_of_many_operations_are_written_at_once_and_the_last_tick_counts(
    operations: OperationTable,
) -> None:
    first, second = a_request(), a_request()
    await operations.record(transition(first, State.RUNNING))
    await operations.record(transition(second, State.RUNNING))
    await operations.write_gauges([tick(first.op_id, done=10), tick(second.op_id, done=7), tick(first.op_id, done=20)])
    rows = [await operations.find(each.op_id) for each in (first, second)]
    assert [row.progress.bytes_done for row in rows if row] == [20, 7]
    assert [describe(row).sentence for row in rows if row] == ["downloading on the node"] * 2


async def test_gauges_never_touch_an_operation_that_ended(operations: OperationTable) -> None:
    request = a_request()
    await operations.record(transition(request, State.FAILED))
    await operations.write_gauges([tick(request.op_id, done=50)])
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.progress.bytes_done == 0


async def test_gauges_survive_the_next_transition_and_success_is_complete(operations: OperationTable) -> None:
    request = a_request()
    await operations.record(transition(request, State.RUNNING))
    await operations.write_gauges([tick(request.op_id, done=95)])
    await operations.record(transition(request, State.STILL_INSTALLING, seq=2))
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.progress.percentage == 95
    await operations.record(transition(request, State.SUCCEEDED, seq=3))
    row = await operations.find(request.op_id)
    assert row is not None
    assert (row.progress.percentage, row.progress.bytes_done, row.progress.rate) == (100, 100, 0)


async def test_stalled_is_running_without_a_byte_for_a_minute(operations: OperationTable, clock: SetClock) -> None:
    request = a_request()
    await operations.record(transition(request, State.RUNNING, at=0))

    async def stalled_at(seconds: float) -> bool:
        clock.now = NOON + timedelta(seconds=seconds)
        row = await operations.find(request.op_id)
        assert row is not None
        return row.stalled

    assert not await stalled_at(60)
    assert await stalled_at(61)
    await operations.write_gauges([tick(request.op_id, done=10)])
    assert not await stalled_at(120)
    await operations.write_gauges([tick(request.op_id, done=10)])
    assert await stalled_at(122)
    await operations.record(transition(request, State.WAITING, at=122, seq=2))
    assert not await stalled_at(1000)


async def test_gauge_of_the_last_attempt_is_not_shown_during_a_back_off(operations: OperationTable) -> None:
    request = a_request()
    await operations.record(transition(request, State.RUNNING))
    await operations.write_gauges([tick(request.op_id, done=20)])
    until = NOON + timedelta(seconds=30)
    detail = "attempt 1: connection reset"
    await operations.record(
        transition(request, State.WAITING, seq=2, reason=Reason.BACK_OFF, detail=detail, until=until, attempt=2)
    )
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.progress == Gauge()
    message = describe(row).sentence
    assert message == "Retrying: attempt 1 failed (connection reset). Next try at 12:00:30 UTC."
    assert event_view((await operations.timeline(request.op_id))[-1]).message == message
    await operations.record(transition(request, State.RUNNING, seq=3, attempt=2))
    await operations.write_gauges([tick(request.op_id, done=40)])
    row = await operations.find(request.op_id)
    assert row is not None
    assert (row.progress.bytes_done, row.progress.rate) == (40, 5)


async def test_operation_without_a_byte_for_a_minute_has_no_speed(operations: OperationTable, clock: SetClock) -> None:
    request = a_request()
    await operations.record(transition(request, State.RUNNING, at=0))
    await operations.write_gauges([tick(request.op_id, done=20)])
    clock.forward(seconds=61)
    row = await operations.find(request.op_id)
    assert row is not None
    assert (row.stalled, row.progress.bytes_done, row.progress.rate, row.progress.eta_s) == (True, 20, 0, None)


async def test_missing_worker_is_named_after_half_a_minute_and_never_beside_progress(
    operations: OperationTable, clock: SetClock
) -> None:
    request = a_request()
    await operations.insert_queued(transition(request, State.QUEUED, seq=0))

    async def reported() -> tuple[str, bool]:
        row = await operations.find(request.op_id)
        assert row is not None
        said = describe(row)
        return said.sentence, bool(said.remedy)

    clock.forward(seconds=30)
    assert await reported() == ("queued", False)
    clock.forward(seconds=1)
    assert await reported() == ("queued: no worker has picked it up", True)
    await operations.write_gauges([tick(request.op_id, done=20)])
    assert await reported() == ("queued", False)


# lists --------------------------------------------------------------------------------------------------------


async def test_live_list_has_open_and_unsuccessful_ones_until_dismissed(
    database: Database, operations: OperationTable
) -> None:
    """S15, S17, S18, S19, S20: succeeded and cancelled operations leave the live list by themselves."""
    requests = {state: a_request(node_id="live") for state in State if state is not State.UNKNOWN}
    for state, request in requests.items():
        await operations.record(transition(request, state))

    async def live() -> set[State]:
        return {row.state for row in (await operations.listing(OperationFilter(node="live"))).operations}

    assert await live() == OPEN | {State.FAILED, State.EXPIRED, State.DEAD_LETTER}
    dismissed = await History(database).dismiss([requests[State.FAILED].op_id, requests[State.RUNNING].op_id])
    assert dismissed == {requests[State.FAILED].op_id}
    assert await live() == OPEN | {State.EXPIRED, State.DEAD_LETTER}
    assert len((await operations.listing(OperationFilter(node="live"), scope=OperationScope.ALL)).operations) == len(
        requests
    )


async def test_list_filters_by_node_name_state_and_batch_newest_first(operations: OperationTable) -> None:
    older = a_request(op_id="flt-1", node_id="flt", batch_id="batch-7")
    newer = a_request(op_id="flt-2", node_id="flt")
    await operations.record(transition(older, State.RUNNING))
    await operations.record(transition(newer, State.WAITING))

    async def ids(*, limit: int = 500, **filters: Any) -> list[str]:
        return [row.op_id for row in (await operations.listing(OperationFilter(**filters), limit=limit)).operations]

    assert await ids(node="flt-name") == [newer.op_id, older.op_id]
    assert await ids(node="flt", state=State.RUNNING) == [older.op_id]
    assert await ids(batch="batch-7") == [older.op_id]
    assert await ids(node="flt", limit=1) == [newer.op_id]


async def test_waiting_for_lists_operations_that_the_node_can_continue(operations: OperationTable) -> None:
    away, unasked, cancelling, back_off, elsewhere = (
        a_request(node_id=node) for node in ("w1", "w1", "w1", "w1", "w2")
    )
    await operations.record(transition(away, State.WAITING, reason=Reason.NODE_AWAY))
    await operations.record(transition(unasked, State.WAITING, reason=Reason.NATS_DOWN))
    await operations.record(transition(cancelling, State.CANCELLING))
    await operations.record(transition(back_off, State.WAITING, reason=Reason.BACK_OFF))
    await operations.record(transition(elsewhere, State.WAITING, reason=Reason.NODE_AWAY))
    assert {row.op_id for row in await operations.waiting_for(["w1"])} == {away.op_id, unasked.op_id, cancelling.op_id}
    assert await operations.waiting_for([]) == []


async def test_open_and_ended_operations_are_distinguished(operations: OperationTable) -> None:
    running, ended = a_request(), a_request()
    await operations.record(transition(running, State.RUNNING))
    await operations.record(transition(ended, State.CANCELLED))
    open_ids = {row.op_id for row in await operations.open_operations()}
    assert running.op_id in open_ids
    assert ended.op_id not in open_ids
    gone = await operations.ended_among([running.op_id, ended.op_id, "nobody"])
    assert [row.op_id for row in gone] == [ended.op_id]


async def test_replayed_transition_writes_no_second_event(operations: OperationTable) -> None:
    """After a worker crash between the write and its completion in Temporal, another worker repeats the step later."""
    request = a_request()
    began, ended = (partial(transition, request, state) for state in (State.RUNNING, State.SUCCEEDED))
    assert (await operations.record(began(seq=1, at=1))).written
    assert (await operations.record(began(seq=1, at=5), ended(seq=2, at=5))).written, "only the end is new"
    assert not (await operations.record(began(seq=1, at=9), ended(seq=2, at=9))).written
    assert [event.state for event in await operations.timeline(request.op_id)] == [State.RUNNING, State.SUCCEEDED]


async def test_reset_run_continues_the_timeline(operations: OperationTable) -> None:
    """Its numbers restart, so the time decides; a late write of the earlier run changes nothing."""
    request = a_request()
    assert (await operations.record(transition(request, State.WAITING, seq=7, at=1))).written
    assert (await operations.record(transition(request, State.RUNNING, seq=3, at=2, run_id="run-2"))).written
    assert not (await operations.record(transition(request, State.WAITING, seq=8, at=1))).written
    row = await operations.find(request.op_id)
    assert row is not None
    assert row.state is State.RUNNING


# the row is final ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", sorted(ENDED))
@pytest.mark.parametrize("later", sorted(set(State) - {State.UNKNOWN}))
async def test_ended_row_is_final_and_returns_its_end(operations: OperationTable, end: State, later: State) -> None:
    """Promise 2, S62: no second end and no reopening, from any run at any time."""
    request = a_request()
    ended = transition(request, end, reason=Reason.REQUESTED, detail="first", ended_at=NOON)
    assert (await operations.record(ended)).written
    for run_id in ("run-1", "run-2"):
        refused = await operations.record(transition(request, later, seq=99, at=99, run_id=run_id, detail="second"))
        assert refused == RecordResult(written=False, end=RowEnd(state=end, reason=Reason.REQUESTED, detail="first"))
    assert [event.detail for event in await operations.timeline(request.op_id)] == ["first"]


async def test_repeated_transition_with_another_result_writes_an_event(operations: OperationTable) -> None:
    """A workflow task that is executed again may have another result with the same number."""
    request = a_request()
    await operations.record(transition(request, State.WAITING, seq=1, at=1))
    ended = transition(request, State.CANCELLED, seq=1, at=5, ended_at=NOON)
    assert (await operations.record(ended)).written
    assert [event.state for event in await operations.timeline(request.op_id)] == [State.WAITING, State.CANCELLED]


async def test_end_is_accepted_after_a_lost_task_with_higher_numbers(operations: OperationTable) -> None:
    request = a_request()
    await operations.record(transition(request, State.RUNNING, seq=1), transition(request, State.WAITING, seq=2))
    assert (await operations.record(transition(request, State.CANCELLED, seq=1, at=5, ended_at=NOON))).written


async def test_end_without_an_outcome_needs_a_row_that_was_never_sent(
    database: Database, operations: OperationTable
) -> None:
    """Promise 3: `cancelled` cannot be written after a command was sent."""
    request, permits = a_request(), PermitTable(database)
    cancelled = transition(request, State.CANCELLED, seq=2, at=2, ended_at=NOON)
    await orders_on(database).admit(transition(request, State.QUEUED, seq=0))
    await permits.permit(request.op_id, 1, token="a", on_node=False)
    assert await operations.record(cancelled, only_unsent=True) == RecordResult(written=False)
    await permits.withdraw(request.op_id, 1, token="a")
    assert await operations.record(cancelled, only_unsent=True) == RecordResult(written=True)

"""History in pages, pending work, clearing and purging, on PostgreSQL."""

from datetime import timedelta
from typing import Any

import pytest

from nodesmith.contracts.temporal.batches import BatchInput, BatchState, CloseBatch, Target, member_op_id
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.operation import OPEN, Reason, State
from nodesmith.domain.operation_filter import OperationFilter, OperationScope
from nodesmith.store.database import Database
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.events import EventFeed
from nodesmith.store.operations.history import History
from nodesmith.store.operations.operations import OperationTable
from tests.store.clock import NOON, SetClock
from tests.store.transitions import a_request, transition

EVERYTHING = OperationFilter()


@pytest.fixture
def history(database: Database, clock: SetClock) -> History:
    return History(database, clock=clock)


async def ended(operations: OperationTable, state: State = State.SUCCEEDED, *, at: float = 1, **facts: Any) -> str:
    request = a_request(**facts)
    moment = NOON + timedelta(seconds=at)
    await operations.record(transition(request, state, at=at, ended_at=None if state in OPEN else moment))
    return request.op_id


async def test_history_pages_contain_each_operation_once_newest_first(
    operations: OperationTable, history: History
) -> None:
    mine = OperationFilter(node="paged")
    written = [await ended(operations, at=at, node_id="paged") for at in (3, 1, 2, 2, 5)]
    await ended(operations, State.RUNNING, node_id="paged")
    seen, cursor = [], ""
    while True:
        page, following = await history.page(mine, cursor=cursor, limit=2)
        seen += [view.op_id for view in page]
        if following is None:
            break
        cursor = following
    twins = sorted(written[2:4], reverse=True)
    assert seen == [written[4], written[0], *twins, written[1]]


async def test_history_is_filtered_by_node_backend_state_batch_and_time(
    operations: OperationTable, history: History
) -> None:
    wanted = await ended(operations, State.FAILED, at=100, node_id="f1", backend="whisper", batch_id="b1")
    await ended(operations, State.SUCCEEDED, at=200, node_id="f1", backend="vllm")

    async def found(**conditions: Any) -> list[str]:
        times = {name: conditions.pop(name) for name in ("since", "until") if name in conditions}
        page, _ = await history.page(OperationFilter(node="f1-name", **conditions), **times)
        return [view.op_id for view in page]

    assert len(await found()) == 2
    for conditions in (
        {"backend": "gallery@Whisper"},
        {"state": State.FAILED},
        {"batch": "b1"},
        {"until": NOON + timedelta(seconds=150)},
    ):
        assert await found(**conditions) == [wanted]
    assert await found(since=NOON + timedelta(seconds=300)) == []


@pytest.mark.parametrize(
    "cursor", ["nonsense", "W10", "WzEsMl0", "WyIyMDI2LTExLTE2IiwgIngiXQ", "W1tb" * 5000], ids=lambda text: text[:20]
)
async def test_a_cursor_of_something_else_is_refused(history: History, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        await history.page(EVERYTHING, cursor=cursor)


async def test_clearing_hides_what_is_settled_and_keeps_what_needs_attention(
    operations: OperationTable, history: History
) -> None:
    mine = OperationFilter(node="cleared")
    done = await ended(operations, node_id="cleared")
    failed = await ended(operations, State.FAILED, node_id="cleared")
    assert await history.clear() >= 1
    page, _ = await history.page(mine)
    assert [view.op_id for view in page] == [failed]
    assert (await operations.find(done)) is not None, "batches and audit still need the row"
    assert [view.op_id for view in (await operations.listing(OperationFilter(node="cleared"))).operations] == [failed]


async def test_old_operations_are_purged_with_their_story_and_young_ones_stay(
    operations: OperationTable, history: History, feed: EventFeed
) -> None:
    """H33: ended operations are purged after their retention time."""
    days = 86400.0
    old, young = [await ended(operations, at=at, node_id="kept") for at in (-100 * days, -10 * days)]
    running = await ended(operations, State.RUNNING, at=-100 * days, node_id="kept")
    assert await history.purge(NOON - timedelta(days=90)) >= 1
    assert await operations.find(old) is None
    assert await feed.after(0, limit=10, op_id=old) == []
    assert {young, running} == {
        view.op_id
        for view in (await operations.listing(OperationFilter(node="kept"), scope=OperationScope.ALL)).operations
    }
    assert await history.purge(NOON - timedelta(days=90)) == 0


async def test_an_operation_stays_as_long_as_its_batch(
    database: Database, operations: OperationTable, history: History
) -> None:
    """H33: a batch never shows a member whose operation was purged under it."""
    batches, target = Batches(database), Target(node_id="m1", node_name="m1")
    wanted = a_request().wanted
    created = NOON - timedelta(days=100)
    batch = BatchInput(batch_id="long", wanted=wanted, targets=(target,), created_at=created)
    await batches.open(batch)
    op_id = await ended(operations, at=-100 * 86400.0, node_id="m1", op_id=member_op_id("long", "m1"), batch_id="long")
    await batches.close(CloseBatch(batch_id="long", state=BatchState.COMPLETED, at=NOON - timedelta(days=80)))
    await history.purge(NOON - timedelta(days=90))
    assert [member.state for member in await batches.members("long")] == ["succeeded"]
    await history.purge(NOON - timedelta(days=79))
    assert (await batches.find("long"), await operations.find(op_id)) == (None, None)


async def test_pending_work_is_counted_per_node_and_per_backend(operations: OperationTable, history: History) -> None:
    """H34, R80, R85: the queue is visible, with what each part of it waits for."""
    until = NOON + timedelta(minutes=4)
    waiting = a_request(node_id="q1", backend="queued-a")
    await operations.record(
        transition(waiting, State.WAITING, reason=Reason.BACK_OFF, until=until, attempt=3),
        transition(a_request(node_id="q1", backend="queued-b"), State.RUNNING),
        transition(a_request(node_id="q2", backend="queued-b"), State.QUEUED),
        transition(a_request(node_id="q1", backend="queued-b"), State.SUCCEEDED, ended_at=NOON),
    )
    nodes, backends = await history.pending()
    [first] = [work for work in nodes if work.node_id == "q1"]
    assert (first.name, first.total, first.states) == ("q1-name", 2, {"waiting": 1, "running": 1})
    assert (first.reasons, first.next_try, first.oldest) == ({"back_off": 1}, until, NOON)
    assert {work.name: work.total for work in backends}.items() >= {"queued-a": 1, "queued-b": 2}.items()


async def test_dismissing_many_concerns_only_what_ended_badly(operations: OperationTable, history: History) -> None:
    failed = await ended(operations, State.DEAD_LETTER, node_id="swept")
    running = await ended(operations, State.RUNNING, node_id="swept")
    assert [view.op_id for view in await history.undismissed(OperationFilter(node="swept"), limit=9)] == [failed]
    assert [view.op_id for view in await history.list_open(OperationFilter(node="swept"), limit=9)] == [running]
    assert await history.dismiss([failed, running, "nobody"]) == {failed}
    assert await history.undismissed(OperationFilter(node="swept"), limit=9) == []

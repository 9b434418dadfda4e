"""Batches on PostgreSQL: an end is final, and failed attempts are reported with their causes."""

import uuid
from datetime import timedelta

import pytest

from nodesmith.api.views.batches import batch_detail, batch_view
from nodesmith.contracts.http.batches import FailureCause
from nodesmith.contracts.temporal.batches import (
    BatchInput,
    BatchState,
    CloseBatch,
    MemberVerdict,
    Target,
    member_op_id,
)
from nodesmith.contracts.temporal.operations import OperationRequest
from nodesmith.domain.operation import Reason, State
from nodesmith.store.database import Database
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.operations import OperationTable
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition


@pytest.fixture
def batches(database: Database) -> Batches:
    return Batches(database)


async def opened(batches: Batches, *nodes: str) -> tuple[str, dict[str, OperationRequest]]:
    batch_id = str(uuid.uuid4())
    targets = tuple(Target(node_id=node, node_name=node) for node in nodes)
    await batches.open(BatchInput(batch_id=batch_id, wanted=a_request().wanted, targets=targets, created_at=NOON))
    requests = {
        node: a_request().model_copy(
            update={"op_id": member_op_id(batch_id, node), "node_id": node, "node_name": node, "batch_id": batch_id}
        )
        for node in nodes
    }
    return batch_id, requests


async def failing(operations: OperationTable, request: OperationRequest, *errors: str) -> None:
    """Each error is one failed attempt; after each the operation waits, and then runs again."""
    for number, error in enumerate(errors, 1):
        detail = f"attempt {number}: {error}"
        await operations.record(
            transition(
                request, State.WAITING, seq=2 * number, reason=Reason.BACK_OFF, detail=detail, attempt=number + 1
            ),
            transition(request, State.RUNNING, seq=2 * number + 1, attempt=number + 1),
        )


async def test_message_names_the_three_most_frequent_causes_of_failure(
    batches: Batches, operations: OperationTable
) -> None:
    """Also while the next attempt runs, when the row no longer has the detail."""
    batch_id, members = await opened(batches, "n1", "n2", "n3", "n4", "n5")
    await failing(operations, members["n1"], "refused", "refused", "too slow")
    await failing(operations, members["n2"], "refused", "node_error")
    await failing(operations, members["n3"], "too slow")
    await operations.record(transition(members["n4"], State.FAILED, reason=Reason.NO_DISK, ended_at=NOON))
    await operations.record(transition(members["n5"], State.SUCCEEDED, ended_at=NOON))
    batch = await batches.find(batch_id)
    assert batch is not None
    view = batch_view(batch)
    assert (view.failed_attempts, view.failed_nodes) == (7, 4)
    assert view.troubles[:2] == [
        FailureCause(cause="refused", attempts=3, nodes=2),
        FailureCause(cause="too slow", attempts=2, nodes=2),
    ]
    assert len(view.troubles) == 3
    reported = "7 failed attempts on 4 nodes: 3 x refused (2 nodes), 2 x too slow (2 nodes), 1 x "
    assert reported in view.message
    detail = await batches.detail(batch_id)
    assert detail is not None
    assert batch_detail(detail).message == view.message


async def test_reason_code_becomes_a_sentence_and_the_last_attempt_counts(
    batches: Batches, operations: OperationTable
) -> None:
    batch_id, members = await opened(batches, "n1")
    await failing(operations, members["n1"], "node_error")
    gave_up = transition(members["n1"], State.DEAD_LETTER, seq=9, reason=Reason.ATTEMPTS_EXHAUSTED, attempt=3)
    await operations.record(gave_up.model_copy(update={"detail": "attempt 2: node_error", "ended_at": NOON}))
    batch = await batches.find(batch_id)
    assert batch is not None
    view = batch_view(batch)
    assert view.troubles == [FailureCause(cause="the node reported an error", attempts=2, nodes=1)]
    assert view.message.endswith("2 failed attempts on 1 node: 2 x the node reported an error (1 node)")


async def test_batch_without_failures_reports_none(batches: Batches) -> None:
    batch_id, _ = await opened(batches, "n1")
    batch = await batches.find(batch_id)
    assert batch is not None
    view = batch_view(batch)
    assert (view.failed_attempts, view.troubles, view.message) == (0, [], "running: 1 waiting for turn")


async def test_failed_attempts_are_counted_by_operation(batches: Batches, operations: OperationTable) -> None:
    _, members = await opened(batches, "n1", "n2")
    await failing(operations, members["n1"], "a", "b")
    await operations.record(transition(members["n2"], State.RUNNING, attempt=1))
    op_ids = [request.op_id for request in members.values()]
    assert await batches.failed_attempts(op_ids) == {members["n1"].op_id: 2}


async def test_ended_batch_is_final(batches: Batches) -> None:
    batch_id, _ = await opened(batches, "n1")
    later = NOON + timedelta(seconds=1)
    assert not await batches.has_ended(batch_id)
    assert batch_id in await batches.open_ids()
    assert await batches.end_outside(batch_id, detail="gone", at=NOON)
    assert not await batches.end_outside(batch_id, detail="again", at=later)
    for state in (BatchState.RUNNING, BatchState.COMPLETED, BatchState.CANCELLED):
        await batches.close(CloseBatch(batch_id=batch_id, state=state, at=later))
    view = await batches.find(batch_id)
    assert view is not None
    assert (view.state, view.detail, view.ended_at) == (BatchState.STOPPED, "gone", NOON)
    assert await batches.has_ended(batch_id)
    assert batch_id not in await batches.open_ids()


async def test_existing_operation_overrides_the_verdict_of_a_repair(
    batches: Batches, operations: OperationTable
) -> None:
    """A worker may admit a member while the repair ends its batch."""
    batch_id, members = await opened(batches, "n1", "n2")
    await batches.end_outside(batch_id, detail="gone", at=NOON)
    await operations.record(transition(members["n1"], State.RUNNING))
    view = await batches.find(batch_id)
    assert view is not None
    assert view.counts == {"running": 1, "not_started": 1}
    assert [member.state for member in await batches.members(batch_id)] == [State.RUNNING, MemberVerdict.NOT_STARTED]


async def test_batch_end_is_accepted_when_the_api_clock_is_ahead(batches: Batches) -> None:
    """`created_at` uses the API's clock and the end Temporal's: the first may be minutes ahead."""
    batch_id, _ = await opened(batches, "n1")
    earlier = NOON - timedelta(minutes=5)
    await batches.close(CloseBatch(batch_id=batch_id, state=BatchState.COMPLETED, at=earlier))
    view = await batches.find(batch_id)
    assert view is not None
    assert (view.state, view.ended_at) == (BatchState.COMPLETED, earlier)


async def test_batch_end_is_accepted_after_the_temporal_clock_was_set_back(batches: Batches) -> None:
    """Otherwise the repair would end a completed batch as one whose run is gone."""
    batch_id, _ = await opened(batches, "n1")
    await batches.close(CloseBatch(batch_id=batch_id, state=BatchState.PAUSED, at=NOON))
    earlier = NOON - timedelta(minutes=5)
    await batches.close(CloseBatch(batch_id=batch_id, state=BatchState.COMPLETED, at=earlier))
    view = await batches.find(batch_id)
    assert view is not None
    assert (view.state, view.ended_at) == (BatchState.COMPLETED, earlier)

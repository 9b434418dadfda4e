"""Retry of a batch: who is asked again, who never is, and what the new batch keeps."""

import uuid

import pytest

from contracts.batches import (
    BatchInput,
    BatchRequest,
    BatchRetry,
    BatchState,
    CloseBatch,
    Member,
    MemberView,
    RetrySelect,
    Target,
    Verdict,
    member_op_id,
)
from contracts.messages import Installed
from contracts.node_http import NodeView, Running
from contracts.temporal import OperationRequest, Policy, Projection
from domain.errors import IdempotencyKeyReused, NotRetryable
from domain.operation import Kind, Reason, State
from runtime.temporal import TemporalRuns
from services.admission import Admission
from services.batches import BatchDesk, is_selected
from services.lifecycle import Lifecycle
from store.batches import Batches
from store.database import Database
from store.idempotency import IdempotencyKeys
from store.inventory import InventoryTable
from store.nodes import Nodes
from store.operations import OperationTable
from tests.services.conftest import Join, now

FAILED, CANCELLED, ALL = RetrySelect.FAILED, RetrySelect.CANCELLED, RetrySelect.ALL_UNFINISHED

ENDS: dict[str, set[RetrySelect]] = {
    State.SUCCEEDED: set(),
    State.FAILED: {FAILED, ALL},
    State.EXPIRED: {FAILED, ALL},
    State.DEAD_LETTER: {FAILED, ALL},
    State.CANCELLED: {CANCELLED, ALL},
    State.QUEUED: set(),
    State.WAITING: set(),
    State.RUNNING: set(),
    State.STILL_INSTALLING: set(),
    State.CANCELLING: set(),
    State.UNKNOWN: set(),
    Verdict.SKIPPED: set(),
    Verdict.CONFLICT: {FAILED, ALL},
    Verdict.REFUSED: {ALL},
    Verdict.NOTHING_TO_DO: set(),
    "waiting_for_turn": set(),
}


@pytest.fixture
def desk(database: Database, nodes: Nodes, runs: TemporalRuns, admission: Admission) -> BatchDesk:
    return BatchDesk(
        nodes=nodes,
        inventory=InventoryTable(database),
        batches=Batches(database),
        runs=runs,
        intents=admission.intents,
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )


def test_every_standing_of_a_member_has_its_place() -> None:
    assert ENDS.keys() | {Verdict.NOT_STARTED} == {*State, *Verdict, "waiting_for_turn"}


@pytest.mark.parametrize("state", ENDS)
def test_a_retry_asks_only_the_members_that_it_names(state: str) -> None:
    """Never those that succeeded, are open, or were left out when the batch was planned."""
    member = MemberView(node_id="n", node_name="n", state=state)
    assert {select for select in RetrySelect if is_selected(member, BatchState.COMPLETED, select)} == ENDS[state]


@pytest.mark.parametrize(
    ("batch", "asked"), [(BatchState.STOPPED, {FAILED, ALL}), (BatchState.CANCELLED, {CANCELLED, ALL})]
)
def test_members_that_never_had_a_turn_go_with_what_ended_the_batch(batch: BatchState, asked: set[RetrySelect]) -> None:
    idle = MemberView(node_id="n", node_name="n", state=Verdict.NOT_STARTED)
    assert {select for select in RetrySelect if is_selected(idle, batch, select)} == asked
    came_late = MemberView(node_id="n", node_name="n", state=State.CANCELLED, reason=Reason.BATCH_STOPPED)
    assert {select for select in RetrySelect if is_selected(came_late, BatchState.STOPPED, select)} == {FAILED, ALL}


async def ended_batch(desk: BatchDesk, operations: OperationTable, **ends: NodeView) -> str:
    """A batch of removals that has ended: one node for each word."""
    batch_id = str(uuid.uuid4())
    wanted = desk.intents.wanted(Kind.REMOVE, BatchRequest(backend="echo"))
    policy = Policy(wait_for_node=None, max_attempts=2)
    targets = tuple(Target(node_id=node.id, node_name=node.name) for node in ends.values())
    batch = BatchInput(batch_id=batch_id, wanted=wanted, targets=targets, policy=policy, created_at=now())
    await desk.batches.open(batch)
    for word, node in ends.items():
        if word in Verdict.__members__.values():
            member = Member(node_id=node.id, node_name=node.name, verdict=Verdict(word))
            await desk.batches.note(batch_id, [member])
            continue
        request = OperationRequest(
            op_id=member_op_id(batch_id, node.id),
            node_id=node.id,
            node_name=node.name,
            wanted=wanted,
            batch_id=batch_id,
            created_at=now(),
        )
        await operations.record(
            Projection(request=request, workflow_id="w", at=now(), seq=1, state=State(word), ended_at=now())
        )
    await desk.batches.close(CloseBatch(batch_id=batch_id, state=BatchState.COMPLETED, at=now()))
    return batch_id


async def have_echo(database: Database, *nodes: NodeView) -> None:
    for node in nodes:
        installed = [Installed(name="echo", version="1")]
        await InventoryTable(database).replace(node.id, installed, asked_at=now(), boot_id="")


@pytest.mark.parametrize(
    ("select", "words"),
    [
        (FAILED, {"failed", "dead_letter"}),
        (CANCELLED, {"cancelled"}),
        (ALL, {"failed", "dead_letter", "cancelled", "refused"}),
    ],
)
async def test_a_retry_goes_to_its_members_with_the_policy_of_the_original(
    desk: BatchDesk, operations: OperationTable, join: Join, database: Database, select: RetrySelect, words: set[str]
) -> None:
    ends = {word: await join() for word in ("succeeded", "failed", "dead_letter", "cancelled", "refused")}
    await have_echo(database, *ends.values())
    batch_id = await ended_batch(desk, operations, **ends)
    accepted = await desk.retry(batch_id, BatchRetry(select=select), actor="ada")
    assert set(accepted.jobs) == {ends[word].name for word in words}
    started = await desk.runs.begun_batch(accepted.batch_id)
    assert started is not None
    assert started.policy == Policy(wait_for_node=None, max_attempts=2), "a removal waits for ever, also again"
    assert (started.retry_of, started.requested_by) == (batch_id, "ada")


async def test_a_retry_names_nodes_that_were_removed_since(
    desk: BatchDesk, operations: OperationTable, lifecycle: Lifecycle, join: Join, database: Database
) -> None:
    gone, there = await join(), await join()
    await have_echo(database, gone, there)
    batch_id = await ended_batch(desk, operations, failed=gone, dead_letter=there)
    await lifecycle.remove(gone.id, actor="ada")
    accepted = await desk.retry(batch_id, actor="ada")
    assert (list(accepted.jobs), accepted.skipped) == ([there.name], {gone.name: "the node was removed"})


async def test_a_retry_without_a_node_that_is_left_is_refused_and_names_them(
    desk: BatchDesk, operations: OperationTable, lifecycle: Lifecycle, join: Join, database: Database
) -> None:
    """Nothing to do is no batch: before, it was accepted and ended `completed`."""
    gone, drained, done = await join(), await join(), await join()
    await have_echo(database, gone, drained, done)
    batch_id = await ended_batch(desk, operations, failed=gone, expired=drained, succeeded=done)
    await lifecycle.remove(gone.id, actor="ada")
    await lifecycle.drain(drained.id, running=Running.FINISH, actor="ada")
    with pytest.raises(NotRetryable) as refused:
        await desk.retry(batch_id, actor="ada")
    assert f"{gone.name}: the node was removed" in refused.value.message
    assert f"{drained.name}: it is drained" in refused.value.message
    assert refused.value.facts["nodes"] == [gone.name, drained.name]
    with pytest.raises(NotRetryable, match="no member that was cancelled"):
        await desk.retry(batch_id, BatchRetry(select=CANCELLED), actor="ada")


async def test_a_retry_of_a_batch_is_bound_to_its_key(
    desk: BatchDesk, operations: OperationTable, join: Join, database: Database
) -> None:
    node, key = await join(), str(uuid.uuid4())
    await have_echo(database, node)
    batch_id = await ended_batch(desk, operations, failed=node)
    first = await desk.retry(batch_id, actor="ada", idempotency_key=key)
    again = await desk.retry(batch_id, actor="ada", idempotency_key=key)
    assert (again.batch_id, again.repeated, again.jobs) == (first.batch_id, True, first.jobs)
    with pytest.raises(IdempotencyKeyReused, match=first.batch_id):
        await desk.retry(batch_id, BatchRetry(select=ALL), actor="ada", idempotency_key=key)


async def test_upgrades_removals_and_rollbacks_stop_after_three_failures_and_installs_never(
    desk: BatchDesk, join: Join, database: Database
) -> None:
    node = await join()
    await have_echo(database, node)
    limits = {}
    for kind in (Kind.INSTALL, Kind.UPGRADE, Kind.ROLLBACK, Kind.REMOVE):
        accepted = await desk.start(BatchRequest(kind=kind, backend="echo", nodes=[node.name]), actor="ada")
        started = await desk.runs.begun_batch(accepted.batch_id)
        assert started is not None
        assert started.max_parallel == 20
        limits[kind] = started.max_failures
    assert limits == {Kind.INSTALL: None, Kind.UPGRADE: 3, Kind.ROLLBACK: 3, Kind.REMOVE: 3}


async def test_a_batch_takes_drained_nodes_only_on_purpose(desk: BatchDesk, lifecycle: Lifecycle, join: Join) -> None:
    drained, ready = await join(), await join()
    await lifecycle.drain(drained.id, running=Running.FINISH, actor="ada")
    request = BatchRequest(backend="echo", nodes=[drained.name, ready.name])
    accepted = await desk.start(request, actor="ada")
    assert (list(accepted.jobs), accepted.skipped) == ([ready.name], {drained.name: "it is drained"})
    on_purpose = await desk.start(request.model_copy(update={"on_drained": True}), actor="ada")
    assert set(on_purpose.jobs) == {drained.name, ready.name}


async def test_attempts_of_a_batch_are_the_policy_of_its_members(desk: BatchDesk, join: Join) -> None:
    node = await join()
    request = BatchRequest(backend="echo", nodes=[node.name], max_attempts=2, count_attempts=True, max_failures=4)
    started = await desk.runs.begun_batch((await desk.start(request, actor="ada")).batch_id)
    assert started is not None
    assert (started.policy.max_attempts, started.limits.max_attempts) == (2, 2)
    view = await desk.batches.find(started.batch_id)
    assert view is not None
    assert (view.max_attempts, view.count_attempts, view.max_failures) == (2, True, 4)

"""Retry of a batch: which members are retried, which never are, and what the new batch keeps."""

import uuid
from dataclasses import replace

import pytest

from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.temporal.batches import (
    BatchInput,
    BatchMember,
    BatchState,
    CloseBatch,
    MemberVerdict,
    Target,
    member_op_id,
    member_request,
)
from nodesmith.contracts.temporal.operations import Intent, OperationRequest, Policy, Projection
from nodesmith.domain.batch import Member, RetrySelect
from nodesmith.domain.errors import IdempotencyKeyReused, NotRetryable, NotSigned
from nodesmith.domain.gallery_trust import GalleryPolicy, GalleryTrust
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import DrainPolicy, Node
from nodesmith.domain.operation import Reason, State
from nodesmith.gallery.minisign import SecretKey
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.batches.batches import BatchService, is_selected
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.operations.admission import Admission
from nodesmith.services.requested_work import RequestedBatch
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.operations import OperationTable
from tests.agent.registry import publish
from tests.agent.web import running
from tests.gallery.test_cosign import public_text
from tests.gallery.test_signatures import KEY, sign_simply
from tests.services.conftest import Join, now, orders_on
from tests.services.test_signed_galleries import intents

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
    MemberVerdict.SKIPPED: set(),
    MemberVerdict.CONFLICT: {FAILED, ALL},
    MemberVerdict.REFUSED: {ALL},
    MemberVerdict.NOTHING_TO_DO: set(),
    "waiting_for_turn": set(),
}


@pytest.fixture
def service(database: Database, nodes: Nodes, runs: TemporalRuns, admission: Admission) -> BatchService:
    return BatchService(
        nodes=nodes,
        inventory=InventoryTable(database),
        batches=Batches(database),
        runs=runs,
        intents=admission.intents,
        orders=orders_on(database),
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )


def test_every_member_state_is_classified_for_retry() -> None:
    assert ENDS.keys() | {MemberVerdict.NOT_STARTED} == {*State, *MemberVerdict, "waiting_for_turn"}


def a_member(state: str, reason: Reason | None = None) -> Member:
    """A member with an operation in that state, with that verdict, or with neither."""
    operation_state = State(state) if state in set(State) else None
    verdict = MemberVerdict(state) if operation_state is None and state in set(MemberVerdict) else None
    return Member(node_id="n", node_name="n", operation_state=operation_state, verdict=verdict, reason=reason)


@pytest.mark.parametrize("state", ENDS)
def test_retry_includes_only_selected_members(state: str) -> None:
    """Never those that succeeded, are open, or were left out when the batch was planned."""
    member = a_member(state)
    assert member.state == state
    assert {select for select in RetrySelect if is_selected(member, BatchState.COMPLETED, select)} == ENDS[state]


@pytest.mark.parametrize(
    ("batch", "asked"), [(BatchState.STOPPED, {FAILED, ALL}), (BatchState.CANCELLED, {CANCELLED, ALL})]
)
def test_retry_of_unstarted_members_depends_on_how_the_batch_ended(batch: BatchState, asked: set[RetrySelect]) -> None:
    idle = a_member(MemberVerdict.NOT_STARTED)
    assert {select for select in RetrySelect if is_selected(idle, batch, select)} == asked
    came_late = a_member(State.CANCELLED, Reason.BATCH_STOPPED)
    assert {select for select in RetrySelect if is_selected(came_late, BatchState.STOPPED, select)} == {FAILED, ALL}


async def ended_batch(
    service: BatchService, operations: OperationTable, wanted: Intent | None = None, /, **ends: Node
) -> str:
    """An ended batch, of removals by default, with one node per state."""
    batch_id = str(uuid.uuid4())
    wanted = wanted or service.intents.wanted(Kind.REMOVE, RequestedBatch(backend="echo"))
    policy = Policy(wait_for_node=None, max_attempts=2)
    targets = tuple(Target(node_id=node.id, node_name=node.name) for node in ends.values())
    batch = BatchInput(batch_id=batch_id, wanted=wanted, targets=targets, policy=policy, created_at=now())
    await service.batches.open(batch)
    await service.orders.add([member_request(batch, each) for each in targets])
    for word, node in ends.items():
        if word in MemberVerdict.__members__.values():
            member = BatchMember(node_id=node.id, node_name=node.name, verdict=MemberVerdict(word))
            await service.batches.note(batch_id, [member])
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
    await service.batches.close(CloseBatch(batch_id=batch_id, state=BatchState.COMPLETED, at=now()))
    return batch_id


async def have_echo(database: Database, *nodes: Node) -> None:
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
async def test_batch_retry_keeps_the_policy_of_the_original(
    service: BatchService,
    operations: OperationTable,
    join: Join,
    database: Database,
    select: RetrySelect,
    words: set[str],
) -> None:
    ends = {word: await join() for word in ("succeeded", "failed", "dead_letter", "cancelled", "refused")}
    await have_echo(database, *ends.values())
    batch_id = await ended_batch(service, operations, **ends)
    accepted = await service.retry(batch_id, select, actor="ada")
    assert set(accepted.operations) == {ends[word].name for word in words}
    started = await service.runs.batch_input(accepted.batch_id)
    assert started is not None
    assert started.policy == Policy(wait_for_node=None, max_attempts=2), "a removal waits for ever, also again"
    assert (started.retry_of, started.requested_by) == (batch_id, "ada")


async def test_a_retry_names_nodes_that_were_removed_since(
    service: BatchService, operations: OperationTable, lifecycle: Lifecycle, join: Join, database: Database
) -> None:
    gone, there = await join(), await join()
    await have_echo(database, gone, there)
    batch_id = await ended_batch(service, operations, failed=gone, dead_letter=there)
    await lifecycle.remove(gone.id, actor="ada")
    accepted = await service.retry(batch_id, actor="ada")
    assert (list(accepted.operations), accepted.skipped) == ([there.name], {gone.name: "the node was removed"})


async def test_retry_without_remaining_nodes_is_refused_with_their_names(
    service: BatchService, operations: OperationTable, lifecycle: Lifecycle, join: Join, database: Database
) -> None:
    """An empty batch is refused; it was once accepted and ended as `completed`."""
    gone, drained, done = await join(), await join(), await join()
    await have_echo(database, gone, drained, done)
    batch_id = await ended_batch(service, operations, failed=gone, expired=drained, succeeded=done)
    await lifecycle.remove(gone.id, actor="ada")
    await lifecycle.drain(drained.id, running=DrainPolicy.FINISH, actor="ada")
    with pytest.raises(NotRetryable) as refused:
        await service.retry(batch_id, actor="ada")
    assert f"{gone.name}: the node was removed" in refused.value.message
    assert f"{drained.name}: it is drained" in refused.value.message
    assert refused.value.facts["nodes"] == [gone.name, drained.name]
    with pytest.raises(NotRetryable, match="no member that was cancelled"):
        await service.retry(batch_id, CANCELLED, actor="ada")


async def test_batch_without_signed_orders_cannot_be_retried(
    service: BatchService, join: Join, database: Database
) -> None:
    """Anyone with access to Temporal can start a batch; a retry must not sign its intent."""
    node = await join()
    await have_echo(database, node)
    target = Target(node_id=node.id, node_name=node.name)
    evil = service.intents.wanted(Kind.REMOVE, RequestedBatch(backend="echo"))
    batch = BatchInput(batch_id=str(uuid.uuid4()), wanted=evil, targets=(target,), created_at=now())
    await service.batches.open(batch)
    member = BatchMember(node_id=node.id, node_name=node.name, verdict=MemberVerdict.CONFLICT)
    await service.batches.note(batch.batch_id, [member])
    await service.batches.close(CloseBatch(batch_id=batch.batch_id, state=BatchState.COMPLETED, at=now()))
    with pytest.raises(NotRetryable, match="never admitted"):
        await service.retry(batch.batch_id, actor="ada")


async def test_node_that_a_run_added_to_a_batch_is_not_retried(
    service: BatchService, operations: OperationTable, join: Join, database: Database
) -> None:
    """A run started directly in Temporal under the id of a batch adds nodes for which no order was signed."""
    node, added = await join(), await join()
    await have_echo(database, node, added)
    batch_id = await ended_batch(service, operations, failed=node)
    batch = await service.batches.request(batch_id)
    assert batch is not None
    await service.batches.open(batch.model_copy(update={"targets": (Target(node_id=added.id, node_name=added.name),)}))
    await service.batches.note(
        batch_id, [BatchMember(node_id=added.id, node_name=added.name, verdict=MemberVerdict.CONFLICT)]
    )
    with pytest.raises(NotRetryable, match="never admitted"):
        await service.retry(batch_id, actor="ada")


async def failed_install(service: BatchService, operations: OperationTable, node: Node) -> str:
    """A batch that installs `engine` on one node, where it failed."""
    batch_id = (await service.start(RequestedBatch(backend="engine", nodes=[node.name]), actor="ada")).batch_id
    batch = await service.runs.batch_input(batch_id)
    assert batch is not None
    failed = member_request(batch, batch.targets[0])
    await operations.record(
        Projection(request=failed, workflow_id="w", at=now(), seq=1, state=State.FAILED, ended_at=now())
    )
    await service.batches.close(CloseBatch(batch_id=batch_id, state=BatchState.COMPLETED, at=now()))
    return batch_id


async def test_a_retry_is_refused_after_the_gallery_has_withdrawn_the_key(
    service: BatchService, operations: OperationTable, join: Join
) -> None:
    """Like the retry of one operation; with a trusted key it is admitted and records the verification."""
    with running() as web:
        image, node = publish(web, [b"layer"]), await join()
        sign_simply(web, image, image.digest.removeprefix("sha256:"))
        index = f"- {{name: engine, uri: '{image.reference}'}}\n"
        trust = GalleryTrust(GalleryPolicy.SIGNED, (public_text(KEY),))
        trusting = replace(service, intents=intents(index, trust))
        batch_id = await failed_install(trusting, operations, node)
        withdrawn = replace(trust, keys=(SecretKey.make().public_text(),))
        with pytest.raises(NotSigned):
            await replace(service, intents=intents(index, withdrawn)).retry(batch_id, actor="ada")
        again = await service.runs.batch_input((await trusting.retry(batch_id, actor="ada")).batch_id)
    assert again is not None
    assert "signed by" in member_request(again, again.targets[0]).wanted.verified


async def test_a_retry_of_a_batch_is_bound_to_its_key(
    service: BatchService, operations: OperationTable, join: Join, database: Database
) -> None:
    node, key = await join(), str(uuid.uuid4())
    await have_echo(database, node)
    batch_id = await ended_batch(service, operations, failed=node)
    first = await service.retry(batch_id, actor="ada", idempotency_key=key)
    again = await service.retry(batch_id, actor="ada", idempotency_key=key)
    assert (again.batch_id, again.repeated, again.operations) == (first.batch_id, True, first.operations)
    with pytest.raises(IdempotencyKeyReused, match=first.batch_id):
        await service.retry(batch_id, ALL, actor="ada", idempotency_key=key)


async def test_upgrades_removals_and_rollbacks_stop_after_three_failures_and_installs_never(
    service: BatchService, join: Join, database: Database
) -> None:
    node = await join()
    await have_echo(database, node)
    limits = {}
    for kind in (Kind.INSTALL, Kind.UPGRADE, Kind.ROLLBACK, Kind.REMOVE):
        accepted = await service.start(RequestedBatch(kind=kind, backend="echo", nodes=[node.name]), actor="ada")
        started = await service.runs.batch_input(accepted.batch_id)
        assert started is not None
        assert started.max_parallel == 20
        limits[kind] = started.max_failures
    assert limits == {Kind.INSTALL: None, Kind.UPGRADE: 3, Kind.ROLLBACK: 3, Kind.REMOVE: 3}


async def test_a_batch_takes_drained_nodes_only_on_purpose(
    service: BatchService, lifecycle: Lifecycle, join: Join
) -> None:
    drained, ready = await join(), await join()
    await lifecycle.drain(drained.id, running=DrainPolicy.FINISH, actor="ada")
    request = RequestedBatch(backend="echo", nodes=[drained.name, ready.name])
    accepted = await service.start(request, actor="ada")
    assert (list(accepted.operations), accepted.skipped) == ([ready.name], {drained.name: "it is drained"})
    on_purpose = await service.start(replace(request, on_drained=True), actor="ada")
    assert set(on_purpose.operations) == {drained.name, ready.name}


async def test_attempts_of_a_batch_are_the_policy_of_its_members(service: BatchService, join: Join) -> None:
    node = await join()
    request = RequestedBatch(backend="echo", nodes=[node.name], max_attempts=2, count_attempts=True, max_failures=4)
    started = await service.runs.batch_input((await service.start(request, actor="ada")).batch_id)
    assert started is not None
    assert (started.policy.max_attempts, started.limits.max_attempts) == (2, 2)
    view = await service.batches.find(started.batch_id)
    assert view is not None
    assert (view.max_attempts, view.count_attempts, view.max_failures) == (2, True, 4)

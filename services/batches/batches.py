"""Batches: plans them, starts one workflow with fixed targets, retries unsuccessful members, passes on orders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from nodesmith.contracts.temporal import batches as names
from nodesmith.contracts.temporal.batches import BatchInput, BatchMember, BatchOrder, member_op_id, member_request
from nodesmith.contracts.temporal.operations import Intent, Policy
from nodesmith.domain.batch import BatchState, Member, MemberVerdict, RetrySelect
from nodesmith.domain.errors import InvalidRequest, NodesmithError, NotRetryable, OperationEnded, UnknownBatch
from nodesmith.domain.idempotency import KeyClaim
from nodesmith.domain.node import Node
from nodesmith.domain.operation import Reason, State
from nodesmith.services.batches.payload_size import refuse_too_large
from nodesmith.services.batches.planning import (
    BatchPlanner,
    BatchPreview,
    PlannedBatch,
    build_of,
    list_reasons,
    preview,
    target,
)
from nodesmith.services.operations.admission import limits_of, operation_policy, started
from nodesmith.services.operations.idempotency import IdempotencyKeys, KeyedRequest
from nodesmith.services.operations.intents import Intents, named_uri
from nodesmith.services.operations.operation_lock import after_start
from nodesmith.services.operations.orders import Orders, wanted_of
from nodesmith.services.ports import BatchRegistry, Inventory, NodeRegistry, OperationRuns
from nodesmith.services.requested_work import RequestedBatch

DEFAULT_MAX_FAILURES = 3
FAILED: frozenset[str] = frozenset({State.FAILED, State.EXPIRED, State.DEAD_LETTER, MemberVerdict.CONFLICT})
LEFT_OUT: frozenset[str] = frozenset({MemberVerdict.SKIPPED, MemberVerdict.NOTHING_TO_DO})
"""verdicts of members that the plan left out"""
ORDERS = {"pause": names.SIGNAL_PAUSE, "resume": names.SIGNAL_RESUME, "cancel": names.SIGNAL_CANCEL}


@dataclass(frozen=True, kw_only=True)
class AcceptedBatch:
    """A durable batch, as its caller sees it."""

    batch_id: str
    message: str
    operations: Mapping[str, str]
    """node name -> operation id, known before it starts"""
    skipped: Mapping[str, str]
    """node name -> reason"""
    repeated: bool = False
    """a repeated request with the same idempotency key: this is the first answer"""


@dataclass(frozen=True)
class BatchService:
    """Plans, starts and retries batches, and pauses, resumes or cancels them."""

    nodes: NodeRegistry
    inventory: Inventory
    batches: BatchRegistry
    runs: OperationRuns
    intents: Intents
    orders: Orders
    keys: IdempotencyKeys
    policy: Policy
    clock: Callable[[], datetime]

    async def plan(self, request: RequestedBatch) -> BatchPreview:
        """What the batch would do on each node; starts nothing."""
        return preview(await self._plan(request))

    async def start(self, request: RequestedBatch, *, actor: str, idempotency_key: str | None = None) -> AcceptedBatch:
        """Fix the targets, pin version and digest, and start the workflow that admits the operations."""
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route="batch", target="", body=request)
        if begun := await self._find_started(asked, await asked.earlier()):
            return begun
        plan, limits = await self._plan(request), limits_of(request)

        def batch(batch_id: str) -> BatchInput:
            return BatchInput(
                batch_id=batch_id,
                wanted=plan.wanted,
                builds=plan.builds,
                targets=tuple(target(node) for node in plan.targets),
                left_out=plan.left_out,
                max_parallel=request.max_parallel,
                max_failures=_max_failures(request),
                count_attempts=request.count_attempts,
                policy=operation_policy(self.policy, request.kind, limits),
                limits=limits,
                requested_by=actor,
                note=request.reason,
                created_at=self.clock(),
                on_drained=request.on_drained,
            )

        return await self._start_once(asked, batch)

    async def retry(
        self,
        batch_id: str,
        select: RetrySelect = RetrySelect.FAILED,
        *,
        actor: str,
        reason: str = "",
        idempotency_key: str | None = None,
    ) -> AcceptedBatch:
        """Start a new batch for unsuccessful members, with the same version, digest and limits."""
        before, batch = await self.batches.request(batch_id), await self.batches.find(batch_id)
        if before is None or batch is None:
            raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
        body = {"reason": reason, "select": select}
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route="batch retry", target=batch_id, body=body)
        if begun := await self._find_started(asked, await asked.earlier()):
            return begun
        chosen = [each for each in await self.batches.members(batch_id) if is_selected(each, batch.state, select)]
        targets, left_out = await self._retry_targets(before, chosen, select)
        builds = await self._verified(await self._ordered_builds(before, targets))

        def again(new_id: str) -> BatchInput:
            scope = {"targets": tuple(target(node) for node in targets), "left_out": left_out, "requested_by": actor}
            origin = {"note": reason, "retry_of": batch_id, "created_at": self.clock()}
            return before.model_copy(update={"batch_id": new_id, "builds": builds, **scope, **origin})

        return await self._start_once(asked, again)

    async def order(self, batch_id: str, signal: str, *, actor: str, reason: str = "") -> None:
        """Pause, resume or cancel."""
        if await self.batches.find(batch_id) is None:
            raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
        if not await self.runs.order_batch(batch_id, signal, BatchOrder(by=actor, reason=reason)):
            raise OperationEnded(f"Batch {batch_id} has ended already.", batch=batch_id)

    async def _plan(self, request: RequestedBatch) -> PlannedBatch:
        return await self._planner.plan(request)

    @property
    def _planner(self) -> BatchPlanner:
        return BatchPlanner(self.nodes, self.inventory, self.intents)

    async def _retry_targets(
        self, before: BatchInput, chosen: Sequence[Member], select: RetrySelect
    ) -> tuple[tuple[Node, ...], tuple[BatchMember, ...]]:
        """The nodes to retry and those left out; raises with the reasons when none can be retried."""
        if not chosen:
            raise NotRetryable(f"Batch {before.batch_id} has {_NO_MEMBER[select]}.", batch=before.batch_id)
        existing = await self.nodes.find_many([member.node_id for member in chosen])
        removed = tuple(_removed(member) for member in chosen if member.node_id not in existing)
        nodes = list(existing.values())
        targets, left_out = await self._planner.retry(before.wanted, nodes, on_drained=before.on_drained)
        if not targets:
            why = list_reasons([*removed, *left_out])
            raise NotRetryable(
                f"No node of batch {before.batch_id} is left to retry. {why}",
                batch=before.batch_id,
                nodes=[each.node_name for each in (*removed, *left_out)],
            )
        return targets, (*removed, *left_out)

    async def _ordered_builds(self, before: BatchInput, targets: Sequence[Node]) -> dict[str, Intent]:
        """Read the builds from the signed orders of that batch: its row and its run prove no admission."""
        orders = await self.orders.read_all([member_op_id(before.batch_id, node.id) for node in targets])
        ordered = {order.node: wanted_of(order) for order in orders}
        if not {node.id for node in targets} <= ordered.keys():
            raise NotRetryable(
                f"Batch {before.batch_id} has members that were never admitted. Ask for what you want as a new batch.",
                batch=before.batch_id,
            )
        return {build_of(node): ordered[node.id] for node in targets}

    async def _verified(self, builds: Mapping[str, Intent]) -> dict[str, Intent]:
        """Check the builds again: the keys that a gallery trusts may have changed since the first time."""
        return await self.intents.verified(builds)

    async def named_uri(self, batch_id: str) -> str:
        """The uri that the caller of a batch gave; empty if a gallery supplied it."""
        before = await self.batches.request(batch_id)
        return next((uri for each in _all_builds(before) if (uri := named_uri(each))), "") if before else ""

    async def _start_once(self, asked: KeyedRequest, batch_of: Callable[[str], BatchInput]) -> AcceptedBatch:
        """Reserve the id, start the batch, record it; an id that was reserved but not recorded is started again."""
        claim = await asked.claim()
        if not claim.is_new and (begun := await self._find_started(asked, claim)):
            return begun
        batch = batch_of(claim.op_id)
        if not batch.targets:
            raise InvalidRequest("A batch needs at least one node.", field="nodes")
        refuse_too_large(batch)
        await self._order_all(batch)
        await self.runs.start_batch(batch)
        started = await self._read_started(batch) if asked.key else batch
        await after_start(self.batches.open(started))
        await asked.note(claim, claim.op_id)
        return _accepted(started, _planned_operations(started), _why_left_out(started))

    async def _order_all(self, batch: BatchInput) -> None:
        """Sign one order per member before the start: the worker that admits the operations has no keys."""
        current = await self._planner.current(batch.wanted, [each.node_id for each in batch.targets])
        members = [member_request(batch, each) for each in batch.targets]
        await self.orders.add(
            [each.model_copy(update={"if_current": current.get(each.node_id, "")}) for each in members]
        )

    async def _find_started(self, asked: KeyedRequest, claim: KeyClaim | None) -> AcceptedBatch | None:
        """The batch that was started under this id, or None; not planned again, as the state may have changed."""
        if claim is None:
            return None
        batch = await self.batches.request(claim.op_id)
        if batch is not None:
            members = await self.batches.members(claim.op_id)
            operations = {
                each.node_name: member_op_id(claim.op_id, each.node_id)
                for each in members
                if each.state not in LEFT_OUT
            }
            skipped = {each.node_name: each.detail for each in members if each.state in LEFT_OUT}
        elif (batch := await self.runs.batch_input(claim.op_id)) is not None:
            await after_start(self.batches.open(batch))
            operations, skipped = _planned_operations(batch), _why_left_out(batch)
        else:
            return None
        await asked.note(claim, claim.op_id)
        return _accepted(batch, operations, skipped, repeated=True)

    async def _read_started(self, batch: BatchInput) -> BatchInput:
        """Read the started batch back: a concurrent replica may have started it with other targets."""
        try:
            return await self.runs.batch_input(batch.batch_id) or batch
        except NodesmithError:
            return batch


_NO_MEMBER = {
    RetrySelect.FAILED: "no member that failed",
    RetrySelect.CANCELLED: "no member that was cancelled",
    RetrySelect.ALL_UNFINISHED: "no member that ended without success",
}


def is_selected(member: Member, batch: BatchState, select: RetrySelect) -> bool:
    """Whether a retry includes this member; never one that succeeded, is open or was left out."""
    never_begun = member.state == MemberVerdict.NOT_STARTED or member.reason is Reason.BATCH_STOPPED
    is_failed = member.state in FAILED or (never_begun and batch is not BatchState.CANCELLED)
    is_cancelled = not is_failed and (member.state == State.CANCELLED or never_begun)
    match select:
        case RetrySelect.FAILED:
            return is_failed
        case RetrySelect.CANCELLED:
            return is_cancelled
        case RetrySelect.ALL_UNFINISHED:
            return is_failed or is_cancelled or member.state == MemberVerdict.REFUSED


def _all_builds(batch: BatchInput) -> tuple[Intent, ...]:
    return (batch.wanted, *batch.builds.values())


def _removed(member: Member) -> BatchMember:
    return BatchMember(
        node_id=member.node_id, node_name=member.node_name, verdict=MemberVerdict.SKIPPED, detail="the node was removed"
    )


def _planned_operations(batch: BatchInput) -> dict[str, str]:
    return {each.node_name: member_op_id(batch.batch_id, each.node_id) for each in batch.targets}


def _why_left_out(batch: BatchInput) -> dict[str, str]:
    return {each.node_name: each.detail for each in batch.left_out}


def _accepted(
    batch: BatchInput, operations: Mapping[str, str], skipped: Mapping[str, str], *, repeated: bool = False
) -> AcceptedBatch:
    message = f"this request was accepted before, as batch {batch.batch_id}"
    return AcceptedBatch(
        batch_id=batch.batch_id,
        message=message if repeated else started(batch.wanted.kind),
        operations=dict(operations),
        skipped=dict(skipped),
        repeated=repeated,
    )


def _max_failures(request: RequestedBatch) -> int | None:
    if request.max_failures is not None:
        return request.max_failures
    return DEFAULT_MAX_FAILURES if request.kind.rules.stops_on_failures else None

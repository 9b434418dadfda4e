"""Batches: from a plan with frozen targets to one durable workflow; retries of what did not succeed, and orders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from contracts import batches as names
from contracts.batches import (
    BatchAccepted,
    BatchInput,
    BatchOrder,
    BatchPlan,
    BatchRequest,
    BatchRetry,
    BatchState,
    Member,
    MemberView,
    RetrySelect,
    Verdict,
    member_op_id,
)
from contracts.node_http import NodeView
from contracts.temporal import Policy
from domain.errors import InvalidRequest, NodesmithError, NotRetryable, OperationEnded, UnknownBatch
from domain.idempotency import Claim
from domain.operation import Kind, Reason, State
from services.admission import STARTED, limits_of, operation_policy
from services.batch_planning import Plan, Planner, described, named, target
from services.gate import after_start
from services.idempotency import IdempotencyKeys, KeyedRequest
from services.intents import Intents
from services.ports import BatchRegistry, Inventory, NodeRegistry, OperationRuns

DEFAULT_MAX_FAILURES = 3
CAREFUL = frozenset({Kind.UPGRADE, Kind.REMOVE, Kind.ROLLBACK})
"""kinds that stop after a few failures unless told otherwise"""
FAILED: frozenset[str] = frozenset({State.FAILED, State.EXPIRED, State.DEAD_LETTER, Verdict.CONFLICT})
LEFT_OUT: frozenset[str] = frozenset({Verdict.SKIPPED, Verdict.NOTHING_TO_DO})
"""when the batch was planned"""
ORDERS = {"pause": names.SIGNAL_PAUSE, "resume": names.SIGNAL_RESUME, "cancel": names.SIGNAL_CANCEL}


@dataclass(frozen=True)
class BatchDesk:
    """Plans, starts, and passes orders on."""

    nodes: NodeRegistry
    inventory: Inventory
    batches: BatchRegistry
    runs: OperationRuns
    intents: Intents
    keys: IdempotencyKeys
    policy: Policy
    clock: Callable[[], datetime]

    async def plan(self, request: BatchRequest) -> BatchPlan:
        """What would be done, node by node; nothing is started."""
        return described(await self._plan(request))

    async def start(self, request: BatchRequest, *, actor: str, idempotency_key: str | None = None) -> BatchAccepted:
        """Freeze the targets, pin version and digest, and start the one workflow that asks for the operations."""
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route="batch", target="", body=request)
        if begun := await self._begun(asked, await asked.earlier()):
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

        return await self._begin(asked, batch)

    async def retry(
        self,
        batch_id: str,
        retry: BatchRetry | None = None,
        *,
        actor: str,
        idempotency_key: str | None = None,
    ) -> BatchAccepted:
        """A new batch over members that did not succeed, with the same version, digest and limits."""
        retry = retry or BatchRetry()
        before, view = await self.batches.request(batch_id), await self.batches.find(batch_id)
        if before is None or view is None:
            raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
        asked = KeyedRequest.of(self.keys, actor, idempotency_key, route="batch retry", target=batch_id, body=retry)
        if begun := await self._begun(asked, await asked.earlier()):
            return begun
        chosen = [each for each in await self.batches.members(batch_id) if is_selected(each, view.state, retry.select)]
        targets, left_out = await self._who_again(before, chosen, retry.select)

        def again(new_id: str) -> BatchInput:
            who = {"targets": tuple(target(node) for node in targets), "left_out": left_out, "requested_by": actor}
            when = {"note": retry.reason, "retry_of": batch_id, "created_at": self.clock()}
            return before.model_copy(update={"batch_id": new_id, **who, **when})

        return await self._begin(asked, again)

    async def order(self, batch_id: str, signal: str, *, actor: str, reason: str = "") -> None:
        """Pause, resume or cancel."""
        if await self.batches.find(batch_id) is None:
            raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
        if not await self.runs.order_batch(batch_id, signal, BatchOrder(by=actor, reason=reason)):
            raise OperationEnded(f"Batch {batch_id} has ended already.", batch=batch_id)

    async def _plan(self, request: BatchRequest) -> Plan:
        return await self._planner.plan(request)

    @property
    def _planner(self) -> Planner:
        return Planner(self.nodes, self.inventory, self.intents)

    async def _who_again(
        self, before: BatchInput, chosen: Sequence[MemberView], select: RetrySelect
    ) -> tuple[tuple[NodeView, ...], tuple[Member, ...]]:
        """Raises when nobody is left, and names why."""
        if not chosen:
            raise NotRetryable(f"Batch {before.batch_id} has {_NOBODY[select]}.", batch=before.batch_id)
        there = await self.nodes.among([member.node_id for member in chosen])
        removed = tuple(_removed(member) for member in chosen if member.node_id not in there)
        targets, left_out = await self._planner.again(before.wanted, list(there.values()), on_drained=before.on_drained)
        if not targets:
            why = named([*removed, *left_out])
            raise NotRetryable(
                f"No node of batch {before.batch_id} is left to retry. {why}",
                batch=before.batch_id,
                nodes=[each.node_name for each in (*removed, *left_out)],
            )
        return targets, (*removed, *left_out)

    async def _begin(self, asked: KeyedRequest, batch_of: Callable[[str], BatchInput]) -> BatchAccepted:
        """Reserve the id, start under it, note it; a reserved id whose start nobody noted starts again."""
        claim = await asked.claim()
        if not claim.is_new and (begun := await self._begun(asked, claim)):
            return begun
        batch = batch_of(claim.op_id)
        if not batch.targets:
            raise InvalidRequest("A batch needs at least one node.", field="nodes")
        await self.runs.start_batch(batch)
        started = await self._as_started(batch) if asked.key else batch
        await after_start(self.batches.open(started))
        await asked.note(claim, claim.op_id)
        return _accepted(started, _planned_jobs(started), _why_left_out(started))

    async def _begun(self, asked: KeyedRequest, claim: Claim | None) -> BatchAccepted | None:
        """What was begun under this id: nodes, galleries and tags may have changed since. None: nothing was."""
        if claim is None:
            return None
        batch = await self.batches.request(claim.op_id)
        if batch is not None:
            members = await self.batches.members(claim.op_id)
            jobs = {
                each.node_name: member_op_id(claim.op_id, each.node_id)
                for each in members
                if each.state not in LEFT_OUT
            }
            skipped = {each.node_name: each.detail for each in members if each.state in LEFT_OUT}
        elif (batch := await self.runs.begun_batch(claim.op_id)) is not None:
            await after_start(self.batches.open(batch))
            jobs, skipped = _planned_jobs(batch), _why_left_out(batch)
        else:
            return None
        await asked.note(claim, claim.op_id)
        return _accepted(batch, jobs, skipped, repeated=True)

    async def _as_started(self, batch: BatchInput) -> BatchInput:
        """Another replica may have started it in the same instant, with the nodes that it saw: those count."""
        try:
            return await self.runs.begun_batch(batch.batch_id) or batch
        except NodesmithError:
            return batch


_NOBODY = {
    RetrySelect.FAILED: "no member that failed",
    RetrySelect.CANCELLED: "no member that was cancelled",
    RetrySelect.ALL_UNFINISHED: "no member that ended without success",
}


def is_selected(member: MemberView, batch: BatchState, select: RetrySelect) -> bool:
    """Whether a retry asks this member again; what succeeded, is open or was left out is never asked."""
    never_begun = member.state == Verdict.NOT_STARTED or member.reason is Reason.BATCH_STOPPED
    is_failed = member.state in FAILED or (never_begun and batch is not BatchState.CANCELLED)
    is_cancelled = not is_failed and (member.state == State.CANCELLED or never_begun)
    match select:
        case RetrySelect.FAILED:
            return is_failed
        case RetrySelect.CANCELLED:
            return is_cancelled
        case RetrySelect.ALL_UNFINISHED:
            return is_failed or is_cancelled or member.state == Verdict.REFUSED


def _removed(member: MemberView) -> Member:
    return Member(
        node_id=member.node_id, node_name=member.node_name, verdict=Verdict.SKIPPED, detail="the node was removed"
    )


def _planned_jobs(batch: BatchInput) -> dict[str, str]:
    return {each.node_name: member_op_id(batch.batch_id, each.node_id) for each in batch.targets}


def _why_left_out(batch: BatchInput) -> dict[str, str]:
    return {each.node_name: each.detail for each in batch.left_out}


def _accepted(
    batch: BatchInput, jobs: Mapping[str, str], skipped: Mapping[str, str], *, repeated: bool = False
) -> BatchAccepted:
    message = f"this request was accepted before, as batch {batch.batch_id}"
    return BatchAccepted(
        batch_id=batch.batch_id,
        jobID=batch.batch_id,
        statusUrl=f"/api/backends/job/{batch.batch_id}",
        message=message if repeated else STARTED[batch.wanted.kind],
        jobs=dict(jobs),
        skipped=dict(skipped),
        repeated=repeated,
    )


def _max_failures(request: BatchRequest) -> int | None:
    if request.max_failures is not None:
        return request.max_failures
    return DEFAULT_MAX_FAILURES if request.kind in CAREFUL else None

"""Activities of a batch: admit its members, watch and cancel them, and record a verdict for each node."""

import asyncio

import structlog
from temporalio import activity

from nodesmith.contracts.temporal import batches as names
from nodesmith.contracts.temporal.batches import (
    AdmitMembers,
    Admitted,
    BatchInput,
    BatchMember,
    CancelMembers,
    CloseBatch,
    MembersWatched,
    MemberVerdict,
    Target,
    WatchMembers,
    member_op_id,
    member_request,
)
from nodesmith.contracts.temporal.operations import CancelRequest, OperationInput
from nodesmith.domain.eligibility import REFUSALS
from nodesmith.domain.errors import OperationConflict
from nodesmith.domain.node import Node
from nodesmith.domain.operation import ENDED, Reason, State
from nodesmith.services.operations.admission import admissible
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.ports import BatchRegistry, NodeRegistry, OperationRuns, Operations

log = structlog.stdlib.get_logger(__name__)

POLL_S = 0.25
HEARTBEAT_S = 5.0
_CONCURRENT_ADMISSIONS = 10


class BatchActivities:
    """Every activity is idempotent: operation ids are derived from batch and node, and rows are upserts."""

    def __init__(
        self,
        lock: OperationLock,
        nodes: NodeRegistry,
        operations: Operations,
        runs: OperationRuns,
        batches: BatchRegistry,
    ) -> None:
        self._lock = lock
        self._nodes = nodes
        self._operations = operations
        self._runs = runs
        self._batches = batches

    @activity.defn(name=names.OPEN_BATCH)
    async def open_batch(self, batch: BatchInput) -> None:
        await self._batches.open(batch)

    @activity.defn(name=names.ADMIT_MEMBERS)
    async def admit_members(self, order: AdmitMembers) -> Admitted:
        """Request one operation on each of these nodes, with the same checks as a user's request."""
        slots = asyncio.Semaphore(_CONCURRENT_ADMISSIONS)
        members = [_member(order.batch, target) for target in order.targets]
        known = await self._operations.states([member.op_id for member in members if member.op_id])
        nodes = await self._nodes.find_many([target.node_id for target in order.targets])
        has_ended = await self._batches.has_ended(order.batch.batch_id)

        async def admit_one(target: Target, member: BatchMember) -> BatchMember:
            if member.op_id in known:
                return member  # admitted by an earlier attempt whose worker died
            if has_ended:
                return _too_late(member)
            async with slots:
                activity.heartbeat()
                return await self._admit(order.batch, target, member, nodes.get(target.node_id))

        admitted = tuple(await asyncio.gather(*map(admit_one, order.targets, members)))
        await self._batches.note(order.batch.batch_id, [each for each in admitted if each.verdict or each.joined])
        return Admitted(members=admitted)

    @activity.defn(name=names.WATCH_MEMBERS)
    async def watch_members(self, watch: WatchMembers) -> MembersWatched:
        """Poll the rows until a member ends, a node leaves or returns, or a counted attempt fails."""
        polls = 0
        while True:
            if polls % int(HEARTBEAT_S / POLL_S) == 0:
                activity.heartbeat()
            polls += 1
            standing = await self._operations.states(watch.op_ids)
            ended = {op_id: state for op_id, (state, _) in standing.items() if state in ENDED}
            away = tuple(sorted(op_id for op_id, how in standing.items() if how == (State.WAITING, Reason.NODE_AWAY)))
            attempts = await self._failed_attempts(watch)
            if ended or away != watch.away or attempts != (watch.attempts or {}):
                return MembersWatched(ended=ended, away=away, attempts=attempts)
            await asyncio.sleep(POLL_S)

    async def _failed_attempts(self, watch: WatchMembers) -> dict[str, int]:
        return await self._batches.failed_attempts(watch.op_ids) if watch.attempts is not None else {}

    @activity.defn(name=names.CANCEL_MEMBERS)
    async def cancel_members(self, cancel: CancelMembers) -> None:
        for op_id in cancel.op_ids:
            activity.heartbeat()
            row = await self._operations.find(op_id)
            workflow_id = row.workflow_id if row is not None else cancel.runs.get(op_id, "")
            if workflow_id and (row is None or row.state not in ENDED):
                request = CancelRequest(op_id=op_id, by=cancel.by, why=cancel.why, detail=cancel.detail)
                await self._runs.cancel(workflow_id, request)

    @activity.defn(name=names.CLOSE_BATCH)
    async def close_batch(self, close: CloseBatch) -> None:
        await self._batches.close(close)

    async def _admit(self, batch: BatchInput, target: Target, member: BatchMember, node: Node | None) -> BatchMember:
        op_id = member_op_id(batch.batch_id, target.node_id)
        try:
            admissible(node, target.node_name, on_drained=batch.on_drained)
            known, joined = await self._lock.admit(
                OperationInput(request=member_request(batch, target), policy=batch.policy)
            )
        except OperationConflict as conflict:
            return member.model_copy(
                update={"op_id": None, "verdict": MemberVerdict.CONFLICT, "detail": conflict.message}
            )
        except REFUSALS as refusal:
            return member.model_copy(
                update={"op_id": None, "verdict": MemberVerdict.REFUSED, "detail": refusal.message}
            )
        return member.model_copy(update={"op_id": known, "joined": joined and known != op_id})


def _member(batch: BatchInput, target: Target) -> BatchMember:
    op_id = member_op_id(batch.batch_id, target.node_id)
    return BatchMember(node_id=target.node_id, node_name=target.node_name, op_id=op_id)


def _too_late(member: BatchMember) -> BatchMember:
    """Refuse a member because the batch row has ended: Temporal was restored to an earlier time."""
    detail = "not started: the batch had already ended"
    return member.model_copy(update={"op_id": None, "verdict": MemberVerdict.NOT_STARTED, "detail": detail})

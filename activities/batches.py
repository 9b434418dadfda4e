"""What a batch does: ask for operations, look how they go, write down what became of each node."""

import asyncio

import structlog
from temporalio import activity

from contracts import batches as names
from contracts.batches import (
    AdmitMembers,
    Admitted,
    BatchInput,
    CancelMembers,
    CloseBatch,
    Member,
    Target,
    Verdict,
    Watched,
    WatchMembers,
    member_op_id,
)
from contracts.node_http import NodeView
from contracts.temporal import CancelRequest, OperationInput, OperationRequest
from domain.errors import (
    NodeDrained,
    NodeNotApproved,
    NodeNotForBackends,
    OperationConflict,
    UnknownNode,
)
from domain.operation import ENDED, Reason, State
from services.admission import admissible
from services.gate import Gate
from services.ports import BatchRegistry, NodeRegistry, OperationRuns, Operations

log = structlog.stdlib.get_logger(__name__)

LOOK_EVERY_S = 0.25
HEARTBEAT_EVERY_S = 5.0
_ASKED_AT_ONCE = 10


class BatchActivities:
    """Each may be repeated: operation ids follow from batch and node, rows are upserts."""

    def __init__(
        self,
        gate: Gate,
        nodes: NodeRegistry,
        operations: Operations,
        runs: OperationRuns,
        batches: BatchRegistry,
    ) -> None:
        self._gate = gate
        self._nodes = nodes
        self._operations = operations
        self._runs = runs
        self._batches = batches

    @activity.defn(name=names.OPEN_BATCH)
    async def open_batch(self, batch: BatchInput) -> None:
        await self._batches.open(batch)

    @activity.defn(name=names.ADMIT_MEMBERS)
    async def admit_members(self, asked: AdmitMembers) -> Admitted:
        """Ask for one operation on each of these nodes, as a person would."""
        gate = asyncio.Semaphore(_ASKED_AT_ONCE)
        members = [_member(asked.batch, target) for target in asked.targets]
        known = await self._operations.standing([member.op_id for member in members if member.op_id])
        nodes = await self._nodes.among([target.node_id for target in asked.targets])
        has_ended = await self._batches.has_ended(asked.batch.batch_id)

        async def one(target: Target, member: Member) -> Member:
            if member.op_id in known:
                return member  # a worker died after it had asked: this is that operation
            if has_ended:
                return _too_late(member)
            async with gate:
                activity.heartbeat()
                return await self._admit(asked.batch, target, member, nodes.get(target.node_id))

        admitted = tuple(await asyncio.gather(*map(one, asked.targets, members)))
        await self._batches.note(asked.batch.batch_id, [each for each in admitted if each.verdict or each.joined])
        return Admitted(members=admitted)

    @activity.defn(name=names.WATCH_MEMBERS)
    async def watch_members(self, watch: WatchMembers) -> Watched:
        """Look at the rows until one has ended, a node went away or came back, or an attempt that counts failed."""
        looks = 0
        while True:
            if looks % int(HEARTBEAT_EVERY_S / LOOK_EVERY_S) == 0:
                activity.heartbeat()
            looks += 1
            standing = await self._operations.standing(watch.op_ids)
            ended = {op_id: state for op_id, (state, _) in standing.items() if state in ENDED}
            away = tuple(sorted(op_id for op_id, how in standing.items() if how == (State.WAITING, Reason.NODE_AWAY)))
            attempts = await self._failed_attempts(watch)
            if ended or away != watch.away or attempts != (watch.attempts or {}):
                return Watched(ended=ended, away=away, attempts=attempts)
            await asyncio.sleep(LOOK_EVERY_S)

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

    async def _admit(self, batch: BatchInput, target: Target, member: Member, node: NodeView | None) -> Member:
        op_id = member_op_id(batch.batch_id, target.node_id)
        try:
            admissible(node, target.node_name, on_drained=batch.on_drained)
            known, joined = await self._gate.admit(_operation(batch, target, op_id))
        except OperationConflict as conflict:
            return member.model_copy(update={"op_id": None, "verdict": Verdict.CONFLICT, "detail": conflict.message})
        except (UnknownNode, NodeNotApproved, NodeNotForBackends, NodeDrained) as refusal:
            return member.model_copy(update={"op_id": None, "verdict": Verdict.REFUSED, "detail": refusal.message})
        return member.model_copy(update={"op_id": known, "joined": joined and known != op_id})


def _member(batch: BatchInput, target: Target) -> Member:
    op_id = member_op_id(batch.batch_id, target.node_id)
    return Member(node_id=target.node_id, node_name=target.node_name, op_id=op_id)


def _too_late(member: Member) -> Member:
    """The row of the batch has an end that this run does not know of: Temporal was restored to an older moment."""
    detail = "not started: the batch had ended already"
    return member.model_copy(update={"op_id": None, "verdict": Verdict.NOT_STARTED, "detail": detail})


def _operation(batch: BatchInput, target: Target, op_id: str) -> OperationInput:
    return OperationInput(
        request=OperationRequest(
            op_id=op_id,
            node_id=target.node_id,
            node_name=target.node_name,
            protocol=target.protocol,
            wanted=batch.builds.get(target.build, batch.wanted),
            requested_by=batch.requested_by,
            note=batch.note,
            batch_id=batch.batch_id,
            limits=batch.limits,
            created_at=batch.created_at,
        ),
        policy=batch.policy,
    )

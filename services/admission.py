"""Admission: from a request to a durable operation, the same way for a person, a batch or a script."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from contracts.http import InstallRequest, JobAccepted, NodeView
from contracts.temporal import (
    CancelRequest,
    OperationInput,
    OperationRequest,
    Policy,
    Projection,
    Run,
    operation_workflow_id,
)
from domain.errors import (
    AlreadyRunning,
    NodeDrained,
    NodeNotApproved,
    NodeNotForBackends,
    NodesmithError,
    NotRetryable,
    OperationConflict,
    ServiceUnavailable,
    UnknownNode,
    UnknownOperation,
)
from domain.identity import derived_op_id, new_op_id
from domain.node import NodeStatus, NodeType
from domain.operation import ENDED, Kind, Reason, State
from services.intents import Intents, intent_of
from services.ports import NodeRegistry, OperationRuns, Operations

log = structlog.stdlib.get_logger(__name__)

START_TRIES = 3
SUPERSEDE_S = 1.5
"""how long we wait for an older request to give way"""
LOOK_AGAIN_S = 0.03

STARTED = {
    Kind.INSTALL: "backend installation started",
    Kind.UPGRADE: "backend upgrade started",
    Kind.ROLLBACK: "backend rollback started",
    Kind.REMOVE: "backend removal started",
}


class IdempotencyKeys(Protocol):
    """Which operation an `Idempotency-Key` led to."""

    async def find(self, actor: str, key: str) -> tuple[str, str] | None: ...
    async def remember(self, actor: str, key: str, intent: str, op_id: str) -> None: ...


@dataclass(frozen=True)
class Admission:
    """The one door to a node's disk."""

    nodes: NodeRegistry
    operations: Operations
    runs: OperationRuns
    intents: Intents
    keys: IdempotencyKeys
    policy: Policy
    clock: Callable[[], datetime]

    async def install(
        self, node: str, request: InstallRequest, *, actor: str, idempotency_key: str | None = None
    ) -> JobAccepted:
        return await self.ask(Kind.INSTALL, node, request, actor=actor, idempotency_key=idempotency_key)

    async def ask(
        self, kind: Kind, node: str, request: InstallRequest, *, actor: str, idempotency_key: str | None = None
    ) -> JobAccepted:
        """Admit one operation on one node; returns as soon as the workflow has started."""
        target = admissible(await self.nodes.find(node), node, on_drained=request.on_drained)
        wanted = self.intents.wanted(kind, request)
        if idempotency_key and (known := await self.keys.find(actor, idempotency_key)):
            return _repeat(known, intent_of(wanted), kind)
        asked = OperationRequest(
            op_id=derived_op_id(actor, idempotency_key) if idempotency_key else new_op_id(),
            node_id=target.id,
            node_name=target.name,
            protocol=target.protocol,
            wanted=wanted,
            requested_by=actor,
            note=request.reason,
            created_at=self.clock(),
        )
        op_id, joined = await self.admit(OperationInput(request=asked, policy=self._policy_for(kind, request)))
        if idempotency_key:
            await _after_start(self.keys.remember(actor, idempotency_key, intent_of(wanted), op_id))
        return _accepted(op_id, kind, joined=joined)

    async def retry(self, op_id: str, *, actor: str, note: str = "") -> JobAccepted:
        """A new operation that names the old one; what was downloaded is not fetched again."""
        row, old = await self.operations.find(op_id), await self.operations.request(op_id)
        if row is None or old is None:
            raise UnknownOperation(f"There is no operation {op_id}.", op_id=op_id)
        if row.state not in ENDED or row.state is State.SUCCEEDED:
            raise NotRetryable(f"Operation {op_id} cannot be retried: it is {row.state}.", op_id=op_id, state=row.state)
        target = admissible(await self.nodes.find(old.node_id), old.node_name)
        again = old.model_copy(
            update={
                "op_id": new_op_id(),
                "protocol": target.protocol,
                "requested_by": actor,
                "note": note,
                "retry_of": op_id,
                "created_at": self.clock(),
            }
        )
        new_id, joined = await self.admit(OperationInput(request=again, policy=self.policy))
        return _accepted(new_id, old.wanted.kind, joined=joined)

    async def admit(self, admitted: OperationInput) -> tuple[str, bool]:
        """Start the run, or join the one that wants the same; the workflow id is the lock."""
        request, intent = admitted.request, intent_of(admitted.request.wanted)
        workflow_id = operation_workflow_id(request.node_id, request.wanted.family)
        for _ in range(START_TRIES):
            try:
                run_id = await self.runs.start(admitted, intent=intent)
            except AlreadyRunning as taken:
                holder = await self.runs.describe(workflow_id, taken.run_id or None)
                if holder is None or not holder.is_open:
                    continue
                if holder.intent == intent:
                    return holder.op_id, True
                await self._supersede(holder, request)
            else:
                await _after_start(self.operations.insert_queued(_first_row(admitted, run_id)))
                return request.op_id, False
        raise ServiceUnavailable("The backend is locked by operations that come and go; ask again.")

    async def _supersede(self, holder: Run, newer: OperationRequest) -> None:
        """An older intent that never reached its node gives way; one that did is a conflict."""
        row = await self.operations.find(holder.op_id)
        if row is None or row.dispatched_at is not None or row.state not in (State.QUEUED, State.WAITING):
            raise _conflict(holder, newer)
        request = CancelRequest(
            op_id=holder.op_id,
            by=newer.requested_by,
            why=Reason.SUPERSEDED,
            detail=f"superseded by {newer.op_id}",
            only_undispatched=True,
        )
        await self.runs.cancel(holder.workflow_id, request)
        if not await self._gives_way(holder):
            raise _conflict(holder, newer)

    async def _gives_way(self, holder: Run) -> bool:
        """The workflow decides, because only it knows what it has sent; we look whether it has ended."""
        deadline = asyncio.get_running_loop().time() + SUPERSEDE_S
        while asyncio.get_running_loop().time() < deadline:
            run = await self.runs.describe(holder.workflow_id, holder.run_id)
            if run is None or not run.is_open:
                return True
            await asyncio.sleep(LOOK_AGAIN_S)
        return False

    def _policy_for(self, kind: Kind, request: InstallRequest) -> Policy:
        """A removal waits for its node for ever, unless somebody says otherwise."""
        asked = {"wait_for_node": request.wait_for_node_s, "deadline": request.deadline_s}
        changes: dict[str, timedelta | None] = {"wait_for_node": None} if kind is Kind.REMOVE else {}
        changes |= {name: timedelta(seconds=seconds) for name, seconds in asked.items() if seconds is not None}
        return self.policy.model_copy(update=changes)


def admissible(node: NodeView | None, asked: str, *, on_drained: bool = False) -> NodeView:
    """The node, if operations may be asked of it at all; being away is no obstacle."""
    if node is None:
        raise UnknownNode(f"There is no node {asked}.", node=asked)
    if node.node_type is not NodeType.BACKEND:
        raise NodeNotForBackends(f"Node {node.name} is of type {node.node_type} and runs no backends.", node=node.name)
    if node.status is NodeStatus.PENDING:
        raise NodeNotApproved(f"Node {node.name} waits for approval.", node=node.name)
    if node.drained_at is not None and not on_drained:
        raise NodeDrained(f"Node {node.name} is drained.", node=node.name)
    return node


async def _after_start(writing: Awaitable[object]) -> None:
    """The workflow has started, so the answer is 202 whatever happens to our row: the workflow writes it too."""
    try:
        await writing
    except NodesmithError as error:
        log.warning("row not written at admission; the workflow will write it", error=str(error))


def _first_row(admitted: OperationInput, run_id: str) -> Projection:
    """The row as the API writes it: older than anything the workflow can write, whatever the clocks say."""
    request = admitted.request
    return Projection(
        request=request,
        workflow_id=operation_workflow_id(request.node_id, request.wanted.family),
        run_id=run_id,
        at=datetime.fromtimestamp(0, UTC),
        seq=0,
        state=State.QUEUED,
    )


def _conflict(holder: Run, asked: OperationRequest) -> OperationConflict:
    return OperationConflict(
        f"Operation {holder.op_id} holds {asked.wanted.family} on node {asked.node_name} and wants something else.",
        op_id=holder.op_id,
        node=asked.node_name,
        backend=asked.wanted.family,
    )


def _repeat(known: tuple[str, str], intent: str, kind: Kind) -> JobAccepted:
    before, op_id = known
    if before != intent:
        raise OperationConflict(f"This Idempotency-Key was used for another request (operation {op_id}).", op_id=op_id)
    return _accepted(op_id, kind, joined=True)


def _accepted(op_id: str, kind: Kind, *, joined: bool) -> JobAccepted:
    return JobAccepted(
        jobID=op_id,
        statusUrl=f"/api/backends/job/{op_id}",
        message=STARTED[kind] if not joined else f"this backend {kind} is running already",
        joined=joined,
        operation=f"/api/operations/{op_id}",
    )

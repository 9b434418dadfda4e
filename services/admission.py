"""Admission: from a request to a durable operation, the same way for a person, a batch or a script."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from contracts.node_http import NodeView
from contracts.operation_http import InstallRequest, JobAccepted
from contracts.temporal import (
    OperationInput,
    OperationRequest,
    Policy,
)
from domain.errors import (
    NodeDrained,
    NodeNotApproved,
    NodeNotForBackends,
    NotRetryable,
    OperationConflict,
    UnknownNode,
    UnknownOperation,
)
from domain.identity import derived_op_id, new_op_id
from domain.node import NodeStatus, NodeType
from domain.operation import ENDED, Kind, State
from gallery.suitability import capability_of
from services.gate import Gate, after_start
from services.intents import Intents, intent_of
from services.ports import NodeRegistry, Operations

log = structlog.stdlib.get_logger(__name__)

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
    gate: Gate
    intents: Intents
    keys: IdempotencyKeys
    policy: Policy
    clock: Callable[[], datetime]

    async def ask(
        self, kind: Kind, node: str, request: InstallRequest, *, actor: str, idempotency_key: str | None = None
    ) -> JobAccepted:
        """Admit one operation on one node; returns as soon as the workflow has started."""
        target = admissible(await self.nodes.find(node), node, on_drained=request.on_drained)
        wanted = self.intents.wanted(kind, request, capability=capability(target))
        asked_for = intent_of(wanted)
        # Before the tag is looked up: the same request is the same one, though the tag has moved meanwhile.
        if idempotency_key and (known := await self.keys.find(actor, idempotency_key)):
            return _repeat(known, asked_for, kind, target)
        asked = OperationRequest(
            op_id=derived_op_id(actor, idempotency_key) if idempotency_key else new_op_id(),
            node_id=target.id,
            node_name=target.name,
            protocol=target.protocol,
            wanted=(await self.intents.pinned({"": wanted}))[""],
            requested_by=actor,
            note=request.reason,
            created_at=self.clock(),
        )
        op_id, joined = await self.gate.admit(
            OperationInput(request=asked, policy=operation_policy(self.policy, kind, request))
        )
        if idempotency_key:
            await after_start(self.keys.remember(actor, idempotency_key, asked_for, op_id))
        return _accepted(op_id, kind, target, joined=joined)

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
        new_id, joined = await self.gate.admit(OperationInput(request=again, policy=self.policy))
        return _accepted(new_id, old.wanted.kind, target, joined=joined)


def operation_policy(policy: Policy, kind: Kind, request: InstallRequest) -> Policy:
    """A removal waits for its node for ever, unless somebody says otherwise."""
    asked = {"wait_for_node": request.wait_for_node_s, "deadline": request.deadline_s}
    changes: dict[str, timedelta | None] = {"wait_for_node": None} if kind is Kind.REMOVE else {}
    changes |= {name: timedelta(seconds=seconds) for name, seconds in asked.items() if seconds is not None}
    return policy.model_copy(update=changes)


def capability(node: NodeView) -> str:
    """What a meta is resolved with for this node."""
    return capability_of(node.capability, node.gpu_vendor, node.total_vram)


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


def _repeat(known: tuple[str, str], intent: str, kind: Kind, node: NodeView) -> JobAccepted:
    before, op_id = known
    if before != intent:
        raise OperationConflict(f"This Idempotency-Key was used for another request (operation {op_id}).", op_id=op_id)
    return _accepted(op_id, kind, node, joined=True)


def _accepted(op_id: str, kind: Kind, node: NodeView, *, joined: bool) -> JobAccepted:
    return JobAccepted(
        jobID=op_id,
        statusUrl=f"/api/backends/job/{op_id}",
        message=STARTED[kind] if not joined else f"this backend {kind} is running already",
        joined=joined,
        operation=f"/api/operations/{op_id}",
        node=node.name,
        node_id=node.id,
    )

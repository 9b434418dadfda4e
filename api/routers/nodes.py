"""The nodes, for people."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from api import auditing
from api.auth import Operator, admin, viewer
from api.known import Node, known_node
from api.parts import IdempotencyKey, PartsOf
from api.problems import responses
from contracts.node_http import Approved, NodeView
from contracts.operation_http import InstallRequest, JobAccepted
from domain.operation import Kind

router = APIRouter(prefix="/api/nodes", tags=["nodes"], dependencies=[Depends(viewer)])


@router.get("/{node}", responses=responses(400, 404))
async def get_node(node: Node, parts: PartsOf) -> NodeView:
    return await known_node(parts, node)


@router.post(
    "/{node}/approve",
    response_model_exclude_none=True,
    dependencies=[Depends(admin)],
    responses=responses(400, 404),
)
async def approve(node: Node, parts: PartsOf) -> Approved:
    """Let a node that registered take part."""
    response = await parts.registration.approve(node)
    return Approved(**response.model_dump())


@dataclass(frozen=True)
class NodeOrder:
    """A change of one node's backends as it was asked for; the audit trail names the operation that it became."""

    http: Request
    asked: InstallRequest
    ask: Callable[[Kind], Awaitable[JobAccepted]]

    async def admit(self, kind: Kind) -> JobAccepted:
        accepted = await self.ask(kind)
        asked = self.asked.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
        after = {**asked, "op_id": accepted.jobID}
        auditing.tell(self.http, target=accepted.node, target_id=accepted.node_id, after=after)
        return accepted


async def node_order(
    *,
    http: Request,
    node: Node,
    request: InstallRequest,
    parts: PartsOf,
    actor: Operator,
    idempotency_key: IdempotencyKey = None,
) -> NodeOrder:
    ask = partial(parts.admission.ask, node=node, request=request, actor=actor, idempotency_key=idempotency_key)
    return NodeOrder(http, request, ask)


Order = Annotated[NodeOrder, Depends(node_order)]


@router.post("/{node}/backends/install", status_code=202, responses=responses(400, 404, 409))
async def install(order: Order) -> JobAccepted:
    """Install a backend on one node. Durable once this has answered; never waits for the node."""
    return await order.admit(Kind.INSTALL)


@router.post("/{node}/backends/upgrade", status_code=202, responses=responses(400, 404, 409))
async def upgrade(order: Order) -> JobAccepted:
    """Upgrade a backend on one node, to the newest version or to the named one."""
    return await order.admit(Kind.UPGRADE)


@router.post("/{node}/backends/rollback", status_code=202, responses=responses(400, 404, 409))
async def rollback(order: Order) -> JobAccepted:
    """Go back to the version before; it is still on the node's disk."""
    return await order.admit(Kind.ROLLBACK)


@router.post("/{node}/backends/remove", status_code=202, responses=responses(400, 404, 409))
async def remove(order: Order) -> JobAccepted:
    """Remove a backend from one node; waits for an absent node for as long as it takes."""
    return await order.admit(Kind.REMOVE)

"""One node, and orders for its backends."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, admin, require_uri_right, viewer
from nodesmith.api.dependencies import Deps, IdempotencyKey
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.views.nodes import node_view
from nodesmith.contracts.http.nodes import Approved, NodeView
from nodesmith.contracts.http.operations import InstallRequest, JobAccepted
from nodesmith.domain.kinds import Kind

router = APIRouter(prefix="/api/nodes", tags=["nodes"], dependencies=[Depends(viewer)])


@router.get("/{node}", responses=responses(400, 404))
async def get_node(node: NodeName, deps: Deps) -> NodeView:
    return node_view(await known_node(deps, node))


@router.post(
    "/{node}/approve",
    response_model_exclude_none=True,
    dependencies=[Depends(admin)],
    responses=responses(400, 404),
)
async def approve(node: NodeName, deps: Deps) -> Approved:
    """Admit a node that has registered."""
    response = await deps.registration.approve(node)
    return Approved(**response.model_dump())


@dataclass(frozen=True)
class NodeOrder:
    """A requested change of one node's backends; the audit trail names the operation that it became."""

    http: Request
    requested: InstallRequest
    ask: Callable[[Kind], Awaitable[JobAccepted]]

    async def admit(self, kind: Kind) -> JobAccepted:
        accepted = await self.ask(kind)
        requested = self.requested.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
        after = {**requested, "op_id": accepted.jobID}
        auditing.record(self.http, target=accepted.node, target_id=accepted.node_id, after=after)
        return accepted


async def node_order(
    *,
    http: Request,
    node: NodeName,
    request: InstallRequest,
    deps: Deps,
    actor: Operator,
    idempotency_key: IdempotencyKey = None,
) -> NodeOrder:
    require_uri_right(http, request.uri)
    ask = partial(deps.admission.ask, node=node, request=request, actor=actor, idempotency_key=idempotency_key)
    return NodeOrder(http, request, ask)


Order = Annotated[NodeOrder, Depends(node_order)]


@router.post("/{node}/backends/install", status_code=202, responses=responses(400, 404, 409))
async def install(order: Order) -> JobAccepted:
    """Install a backend on one node. Durable once this has responded; never waits for the node."""
    return await order.admit(Kind.INSTALL)


@router.post("/{node}/backends/upgrade", status_code=202, responses=responses(400, 404, 409))
async def upgrade(order: Order) -> JobAccepted:
    """Upgrade a backend on one node, to the newest or to the named version."""
    return await order.admit(Kind.UPGRADE)


@router.post("/{node}/backends/rollback", status_code=202, responses=responses(400, 404, 409))
async def rollback(order: Order) -> JobAccepted:
    """Go back to the previous version, which is still on the node's disk."""
    return await order.admit(Kind.ROLLBACK)


@router.post("/{node}/backends/remove", status_code=202, responses=responses(400, 404, 409))
async def remove(order: Order) -> JobAccepted:
    """Remove a backend from one node; waits without limit for a node that is away."""
    return await order.admit(Kind.REMOVE)

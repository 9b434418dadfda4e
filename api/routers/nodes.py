"""The nodes, for people."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header

from api.auth import Operator, admin, viewer
from api.known import Node, known_node
from api.parts import PartsOf
from api.problems import responses
from contracts.node_http import Approved, NodeView
from contracts.operation_http import InstallRequest, JobAccepted
from domain.operation import Kind

router = APIRouter(prefix="/api/nodes", tags=["nodes"], dependencies=[Depends(viewer)])

IdempotencyKey = Annotated[
    str | None,
    Header(max_length=255, description="The same key again is the same operation, however often it is sent."),
]


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


@router.post("/{node}/backends/install", status_code=202, responses=responses(400, 404, 409))
async def install(
    node: Node, request: InstallRequest, parts: PartsOf, actor: Operator, idempotency_key: IdempotencyKey = None
) -> JobAccepted:
    """Install a backend on one node. Durable once this has answered; never waits for the node."""
    return await parts.admission.install(node, request, actor=actor, idempotency_key=idempotency_key)


@router.post("/{node}/backends/upgrade", status_code=202, responses=responses(400, 404, 409))
async def upgrade(
    node: Node, request: InstallRequest, parts: PartsOf, actor: Operator, idempotency_key: IdempotencyKey = None
) -> JobAccepted:
    """Upgrade a backend on one node, to the newest version or to the named one."""
    return await parts.admission.ask(Kind.UPGRADE, node, request, actor=actor, idempotency_key=idempotency_key)


@router.post("/{node}/backends/rollback", status_code=202, responses=responses(400, 404, 409))
async def rollback(
    node: Node, request: InstallRequest, parts: PartsOf, actor: Operator, idempotency_key: IdempotencyKey = None
) -> JobAccepted:
    """Go back to the version before; it is still on the node's disk."""
    return await parts.admission.ask(Kind.ROLLBACK, node, request, actor=actor, idempotency_key=idempotency_key)


@router.post("/{node}/backends/remove", status_code=202, responses=responses(400, 404, 409))
async def remove(
    node: Node, request: InstallRequest, parts: PartsOf, actor: Operator, idempotency_key: IdempotencyKey = None
) -> JobAccepted:
    """Remove a backend from one node; waits for an absent node for as long as it takes."""
    return await parts.admission.ask(Kind.REMOVE, node, request, actor=actor, idempotency_key=idempotency_key)

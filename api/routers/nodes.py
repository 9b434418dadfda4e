"""The nodes, for people."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path

from api.auth import Operator, admin, viewer
from api.parts import Parts, PartsOf
from api.problems import responses
from contracts.http import Approved, InstallRequest, JobAccepted, NodeView
from contracts.messages import Installed
from domain.errors import NoAnswer, UnknownNode
from domain.node import NodeType
from domain.operation import Kind

router = APIRouter(prefix="/api/nodes", tags=["nodes"], dependencies=[Depends(viewer)])

Node = Annotated[str, Path(description="Id or name of the node.")]
IdempotencyKey = Annotated[
    str | None,
    Header(max_length=255, description="The same key again is the same operation, however often it is sent."),
]

LIST_LIMIT_S = 5.0


@router.get("", responses=responses())
async def list_nodes(parts: PartsOf) -> list[NodeView]:
    """All nodes, by name; the status is derived at this moment."""
    return list(await parts.nodes.list())


@router.get("/{node}", responses=responses(400, 404))
async def get_node(node: Node, parts: PartsOf) -> NodeView:
    return await _known(parts, node)


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


@router.get("/{node}/backends", responses=responses(400, 404, 504))
async def list_backends(node: Node, parts: PartsOf) -> list[Installed]:
    """What is on the node's disk, asked of the node itself."""
    known = await _known(parts, node)
    if known.node_type is not NodeType.BACKEND:
        return []
    return await _ask(parts, known)


async def _ask(parts: Parts, node: NodeView) -> list[Installed]:
    answer = await parts.link.list_backends(node.id, within=LIST_LIMIT_S)
    if answer.error:
        raise NoAnswer(f"Node {node.name} could not list its backends: {answer.error}", node=node.name)
    return answer.backends


async def _known(parts: Parts, node: str) -> NodeView:
    known = await parts.nodes.find(node)
    if known is None:
        raise UnknownNode(f"There is no node {node}.", node=node)
    return known

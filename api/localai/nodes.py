"""LocalAI's nodes: list, details, approve, drain, resume, remove, and changes of their backends."""

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, Operator, admin, operator, viewer
from nodesmith.api.dependencies import Deps, IdempotencyKey
from nodesmith.api.localai.views import node_job
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.operation_start import start_operation
from nodesmith.api.problems import respond, responses
from nodesmith.api.v1.nodes import Why
from nodesmith.api.views.nodes import node_view, nodes_json
from nodesmith.api.wait_for_end import operation_end
from nodesmith.contracts import words
from nodesmith.contracts.http.localai import DeleteBody, NodeJob
from nodesmith.contracts.http.nodes import Approved, NodeView
from nodesmith.contracts.http.operations import InstallRequest
from nodesmith.contracts.http.shared import Message, ReasonBody
from nodesmith.contracts.nats.messages import Installed
from nodesmith.domain.errors import NoAnswer
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import DrainPolicy
from nodesmith.domain.operation import State
from nodesmith.services.nodes.lifecycle import LifecycleChange
from nodesmith.services.requested_work import RequestedBackend
from nodesmith.store.nodes.node_list import NodeQuery

router = APIRouter(prefix="/api/nodes", tags=["LocalAI"], dependencies=[Depends(viewer)])


@router.get("", response_model=list[NodeView], responses=responses())
async def list_all_nodes(deps: Deps) -> Response:
    """All nodes, sorted by name."""
    found = await deps.node_list.page(NodeQuery())
    return Response(nodes_json(found.nodes), media_type="application/json")


@router.get("/{node}", responses=responses(400, 404))
async def get_one_node(node: NodeName, deps: Deps) -> NodeView:
    """One node."""
    return node_view(await known_node(deps, node))


@router.delete("/{node}", responses=responses(400, 404))
async def remove_node(node: NodeName, deps: Deps, actor: Admin, reason: Why = "") -> Message:
    """Remove a node: its operations end, and history stays."""
    return _message(await deps.lifecycle.remove(node, actor=actor, reason=reason))


@router.post(
    "/{node}/approve",
    response_model_exclude_none=True,
    dependencies=[Depends(admin)],
    responses=responses(400, 404),
)
async def approve_node(node: NodeName, deps: Deps) -> Approved:
    """Admit a node that has registered."""
    return Approved(**(await deps.registration.approve(node)).model_dump())


@router.post("/{node}/drain", responses=responses(400, 404))
async def drain_node(node: NodeName, deps: Deps, actor: Operator, body: ReasonBody | None = None) -> Message:
    """Give the node no new work; what runs is finished."""
    reason = body.reason if body else ""
    return _message(await deps.lifecycle.drain(node, running=DrainPolicy.FINISH, actor=actor, reason=reason))


@router.post("/{node}/resume", dependencies=[Depends(operator)], responses=responses(400, 404))
async def resume_node(node: NodeName, deps: Deps) -> Message:
    """End a drain."""
    return _message(await deps.lifecycle.resume(node))


@router.get("/{node}/backends", responses=responses(400, 404, 504))
async def list_installed_backends(node: NodeName, deps: Deps) -> list[Installed]:
    """What is on the node's disk, read from the node itself."""
    return await deps.inventory.refresh(await known_node(deps, node))


@router.post("/{node}/backends/install", status_code=202, responses=responses(400, 404, 409))
async def install_on_node(
    node: NodeName, body: InstallRequest, request: Request, deps: Deps, actor: Operator, *, key: IdempotencyKey = None
) -> NodeJob:
    """Install a backend on one node. Durable once this has responded; never waits for the node."""
    return node_job(await start_operation(request, deps, Kind.INSTALL, node, body, actor=actor, key=key))


@router.post("/{node}/backends/upgrade", status_code=202, responses=responses(400, 404, 409))
async def upgrade_on_node(
    node: NodeName, body: InstallRequest, request: Request, deps: Deps, actor: Operator, *, key: IdempotencyKey = None
) -> NodeJob:
    """Upgrade a backend on one node, to the newest or to the named version."""
    return node_job(await start_operation(request, deps, Kind.UPGRADE, node, body, actor=actor, key=key))


@router.post("/{node}/backends/delete", response_model=Message, responses=responses(400, 404, 409, 504))
async def delete_on_node(
    node: NodeName, body: DeleteBody, request: Request, deps: Deps, actor: Operator, *, key: IdempotencyKey = None
) -> Message | JSONResponse:
    """Remove a backend and wait up to two minutes. 504: the removal continues under the named job id."""
    removal = RequestedBackend(backend=body.backend)
    accepted = await deps.admission.ask(Kind.REMOVE, node, removal, actor=actor, idempotency_key=key)
    after = {"backend": body.backend, "op_id": accepted.op_id}
    auditing.record(request, target=accepted.node_name, target_id=accepted.node_id, after=after)
    ended = await operation_end(deps, accepted.op_id)
    if ended is None:
        raise NoAnswer(
            f"{body.backend} is still being removed from {node}; operation {accepted.op_id} continues.",
            op_id=accepted.op_id,
        )
    if ended.state is not State.SUCCEEDED:
        message = f"backend deletion failed: {words.describe(ended).sentence}"
        return respond(request, 500, "operation_failed", message, facts={"op_id": ended.op_id, "state": ended.state})
    return Message(message="backend deleted")


def _message(changed: LifecycleChange) -> Message:
    return Message(message=changed.message)

"""A node's own routes: register, heartbeat, leave, return. Paths, codes and bodies are LocalAI's."""

from fastapi import APIRouter, Depends, Request

from nodesmith.api.auth import Bearer, CallingNode, own_node
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.running_models import counted
from nodesmith.contracts.http.models import NodeModel
from nodesmith.contracts.http.nodes import LeaveBody, RegisterRequest, RegisterResponse
from nodesmith.contracts.http.shared import Message
from nodesmith.contracts.nats.presence import Heartbeat, Resources

router = APIRouter(prefix="/api/node", tags=["nodes: self-service"], dependencies=[Depends(own_node)])

_ANY_BODY = {
    "requestBody": {
        "description": "The node's resources; an unreadable body is ignored.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Resources"}}},
    }
}
_LEAVING = {
    "requestBody": {
        "description": "Which process of the node leaves; optional.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/LeaveBody"}}},
    }
}


@router.post(
    "/register",
    status_code=201,
    response_model_exclude_none=True,
    responses=responses(400, 409, 410),
    summary="Register",
)
async def register_node(request: RegisterRequest, deps: Deps, token: Bearer) -> RegisterResponse:
    """Register a node, renew its credential, or report a new boot. Takes the registration token or the node's own."""
    return await deps.registration.register(request, bearer=token)


@router.post("/{node}/heartbeat", responses=responses(404), openapi_extra=_ANY_BODY, summary="Heartbeat over HTTP")
async def receive_heartbeat(known: CallingNode, request: Request, deps: Deps) -> Message:
    """Heartbeat of a LocalAI worker; our own agents send heartbeats over NATS."""
    deps.heartbeats.add(Heartbeat(node_id=known.id, resources=_resources(await request.body())))
    return Message(message="heartbeat received")


@router.post("/{node}/drain", responses=responses(404), summary="About to go")
async def drain_itself(known: CallingNode, deps: Deps) -> Message:
    """The node is about to leave: it gets no new work, and its operations wait for its return."""
    await deps.lifecycle.leaving(known)
    return Message(message="node set to draining")


@router.post("/{node}/resume", responses=responses(404), summary="Stay after all")
async def resume_itself(known: CallingNode, deps: Deps) -> Message:
    """The node stays after all. An admin's drain or pending approval is not changed."""
    await deps.lifecycle.stayed(known)
    return Message(message="node resumed")


@router.post("/{node}/deregister", responses=responses(404), openapi_extra=_LEAVING, summary="Gone")
async def deregister_node(known: CallingNode, request: Request, deps: Deps) -> Message:
    """The node is offline until it registers again; its data are kept."""
    await deps.lifecycle.left(known, boot_id=_boot(await request.body()))
    return Message(message="node set to offline")


@router.delete("/{node}", responses=responses(404), openapi_extra=_LEAVING, summary="Gone")
async def delete_itself(known: CallingNode, request: Request, deps: Deps) -> Message:
    """The same as `POST /api/node/{node}/deregister`."""
    return await deregister_node(known, request, deps)


@router.get("/{node}/models", response_model_exclude_none=True, responses=responses(404), summary="Models on the node")
async def list_own_models(known: CallingNode, deps: Deps) -> list[NodeModel]:
    """Running models as the node reports them. A LocalAI worker calls this on leaving and must not wait for itself."""
    return await counted(deps, await deps.models.running_if_answered(known))


def _boot(body: bytes) -> str:
    """Our own agents name the process that leaves; LocalAI sends no body, and none is needed."""
    try:
        return LeaveBody.model_validate_json(body).boot_id
    except ValueError:
        return ""


def _resources(body: bytes) -> Resources:
    try:
        return Resources.model_validate_json(body)
    except ValueError:
        return Resources()

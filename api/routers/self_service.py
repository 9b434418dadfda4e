"""What a node does for itself: register, heartbeat, go and come back. Paths, codes and bodies are LocalAI's."""

from fastapi import APIRouter, Depends, Request

from api.auth import Bearer, Speaker, itself
from api.parts import PartsOf
from api.problems import responses
from contracts.http import Message
from contracts.messages import Heartbeat, Resources
from contracts.models_http import NodeModel
from contracts.node_http import Leaving, RegisterRequest, RegisterResponse

router = APIRouter(prefix="/api/node", tags=["nodes: self-service"], dependencies=[Depends(itself)])

_ANY_BODY = {
    "requestBody": {
        "description": "What the node has; a body that cannot be read is ignored.",
        "content": {"application/json": {"schema": Resources.model_json_schema()}},
    }
}
_LEAVING = {
    "requestBody": {
        "description": "Which process of the node goes; none is needed.",
        "content": {"application/json": {"schema": Leaving.model_json_schema()}},
    }
}


@router.post(
    "/register",
    status_code=201,
    response_model_exclude_none=True,
    responses=responses(400, 409, 410),
    summary="Register",
)
async def register(request: RegisterRequest, parts: PartsOf, token: Bearer) -> RegisterResponse:
    """A new node, a renewal of its credential, or a new boot. Takes the registration token or the node's own."""
    return await parts.registration.register(request, bearer=token)


@router.post("/{node}/heartbeat", responses=responses(404), openapi_extra=_ANY_BODY, summary="Heartbeat over HTTP")
async def heartbeat(known: Speaker, request: Request, parts: PartsOf) -> Message:
    """A sign of life of a LocalAI worker; our own agents heartbeat over NATS."""
    parts.heartbeats.take(Heartbeat(node_id=known.id, resources=_resources(await request.body())))
    return Message(message="heartbeat received")


@router.post("/{node}/drain", responses=responses(404), summary="About to go")
async def drain(known: Speaker, parts: PartsOf) -> Message:
    """The node is about to go: it gets no new work, and its operations wait for its return."""
    await parts.lifecycle.leaving(known)
    return Message(message="node set to draining")


@router.post("/{node}/resume", responses=responses(404), summary="Stay after all")
async def resume(known: Speaker, parts: PartsOf) -> Message:
    """Take the node's own leaving back. What an admin decided, drain or approval, is not changed by it."""
    await parts.lifecycle.stayed(known)
    return Message(message="node resumed")


@router.post("/{node}/deregister", responses=responses(404), openapi_extra=_LEAVING, summary="Gone")
@router.delete("/{node}", responses=responses(404), openapi_extra=_LEAVING, summary="Gone")
async def deregister(known: Speaker, request: Request, parts: PartsOf) -> Message:
    """The node is gone until it registers again; nothing of it is forgotten."""
    await parts.lifecycle.left(known, boot_id=_boot(await request.body()))
    return Message(message="node set to offline")


@router.get("/{node}/models", response_model_exclude_none=True, responses=responses(404), summary="Models on the node")
async def models(known: Speaker, parts: PartsOf) -> list[NodeModel]:
    """What runs there, as the node itself says. A LocalAI worker asks before it goes, and must not wait for itself."""
    return await parts.models.glanced(known)


def _boot(body: bytes) -> str:
    """Our own agents say which process goes; LocalAI sends no body, and nothing depends on it."""
    try:
        return Leaving.model_validate_json(body).boot_id
    except ValueError:
        return ""


def _resources(body: bytes) -> Resources:
    try:
        return Resources.model_validate_json(body)
    except ValueError:
        return Resources()

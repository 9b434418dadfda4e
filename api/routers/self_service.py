"""What a node does for itself: register, heartbeat, go and come back. Paths, codes and bodies are LocalAI's."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request

from api.auth import Bearer, itself
from api.parts import Parts, PartsOf
from api.problems import responses
from contracts.http import Leaving, Message, NodeView, RegisterRequest, RegisterResponse
from contracts.messages import Heartbeat, Resources
from domain.errors import NotSignedIn, UnknownNode
from domain.secrets import same

router = APIRouter(prefix="/api/node", tags=["nodes: self-service"], dependencies=[Depends(itself)])

NodeId = Annotated[str, Path(description="Id or name of the node.")]

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
async def heartbeat(node: NodeId, request: Request, parts: PartsOf, token: Bearer) -> Message:
    """A sign of life of a LocalAI worker; our own agents heartbeat over NATS."""
    known = await _speaker(parts, node, token)
    parts.heartbeats.take(Heartbeat(node_id=known.id, resources=_resources(await request.body())))
    return Message(message="heartbeat received")


@router.post("/{node}/drain", responses=responses(404), summary="About to go")
async def drain(node: NodeId, parts: PartsOf, token: Bearer) -> Message:
    """The node is about to go: it gets no new work, and its operations wait for its return."""
    await parts.lifecycle.leaving(await _speaker(parts, node, token))
    return Message(message="node set to draining")


@router.post("/{node}/resume", responses=responses(404), summary="Stay after all")
async def resume(node: NodeId, parts: PartsOf, token: Bearer) -> Message:
    """Take the node's own leaving back. What an admin decided, drain or approval, is not changed by it."""
    await parts.lifecycle.stayed(await _speaker(parts, node, token))
    return Message(message="node resumed")


@router.post("/{node}/deregister", responses=responses(404), openapi_extra=_LEAVING, summary="Gone")
@router.delete("/{node}", responses=responses(404), openapi_extra=_LEAVING, summary="Gone")
async def deregister(node: NodeId, request: Request, parts: PartsOf, token: Bearer) -> Message:
    """The node is gone until it registers again; nothing of it is forgotten."""
    known = await _speaker(parts, node, token)
    await parts.lifecycle.left(known, boot_id=_boot(await request.body()))
    return Message(message="node set to offline")


@router.get("/{node}/models", responses=responses(404), summary="Models on the node")
async def models(node: NodeId, parts: PartsOf, token: Bearer) -> list[dict[str, Any]]:
    """None: models are not served from here yet. A LocalAI worker asks before it goes."""
    await _speaker(parts, node, token)
    return []


async def _speaker(parts: Parts, node: str, token: str) -> NodeView:
    """The node that speaks. Only who could register may learn that a node does not exist."""
    if not token:
        raise NotSignedIn
    try:
        return await parts.registration.speaks_for(node, bearer=token)
    except UnknownNode:
        if same(token, parts.registration.registration_token):
            await parts.lifecycle.tell_if_removed(node)
            raise
        raise NotSignedIn from None


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

"""What a node does for itself: register and, if it is a LocalAI worker, heartbeat. Paths and fields are LocalAI's."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from api.auth import Bearer, itself, same
from api.parts import Parts, PartsOf
from api.problems import responses
from contracts.http import Message, NodeView, RegisterRequest, RegisterResponse
from contracts.messages import Heartbeat, Resources
from domain.errors import NotSignedIn, UnknownNode

router = APIRouter(prefix="/api/node", tags=["nodes: self-service"], dependencies=[Depends(itself)])

NodeId = Annotated[str, Path(description="Id or name of the node.")]

_ANY_BODY = {
    "requestBody": {
        "description": "What the node has; a body that cannot be read is ignored.",
        "content": {"application/json": {"schema": Resources.model_json_schema()}},
    }
}


@router.post(
    "/register", status_code=201, response_model_exclude_none=True, responses=responses(400, 409), summary="Register"
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


async def _speaker(parts: Parts, node: str, token: str) -> NodeView:
    """The node that speaks. Only who could register may learn that a node does not exist."""
    if not token:
        raise NotSignedIn
    try:
        return await parts.registration.speaks_for(node, bearer=token)
    except UnknownNode:
        if same(token, parts.registration.registration_token):
            raise
        raise NotSignedIn from None


def _resources(body: bytes) -> Resources:
    try:
        return Resources.model_validate_json(body)
    except ValueError:
        return Resources()

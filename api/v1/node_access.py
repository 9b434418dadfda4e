"""What a node reads with its own credential: how a host is reached while it fetches from there."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from nodesmith.api.auth import Bearer, NodeId, own_node
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.domain.errors import InvalidRequest, NotAllowed, NotSignedIn
from nodesmith.domain.token_hash import hash_token

router = APIRouter(prefix="/api", tags=["nodes: self-service"])

_HOST = r"^[A-Za-z0-9.\-\[\]:]+$"


@router.get(
    "/node/{node}/sources",
    dependencies=[Depends(own_node)],
    responses=responses(400, 404),
    summary="How a host is reached",
)
async def get_source_access(
    node: NodeId, deps: Deps, token: Bearer, host: Annotated[str, Query(description="name, or name:port")] = ""
) -> SourceAccess:
    """For a node with its own credential, while it carries out an operation that fetches from that host.

    Refused to every other caller, admins and the registration token included. Each operation leaves an audit row.
    """
    if not token:
        raise NotSignedIn
    speaker = await deps.nodes.with_credential(hash_token(token))
    if speaker is None:
        raise NotSignedIn
    if node not in (speaker.id, speaker.name):
        raise NotAllowed("A node can read only its own settings.")
    if speaker.approved_at is None:
        raise NotAllowed("The node waits for approval.")
    if not re.fullmatch(_HOST, host):
        raise InvalidRequest("host: a name, or name:port, is expected.", field="host")
    return await deps.gallery.secrets.hand_out(speaker, host)

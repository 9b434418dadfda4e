"""Invites, and the certificate that a machine checks before it joins."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Request
from fastapi.responses import PlainTextResponse

from api import auditing
from api.auth import CallerOf, admin, anyone
from api.parts import PartsOf
from api.problems import responses
from contracts.access import InviteCreated, InviteRequest, InviteView

router = APIRouter(tags=["invites"])

_PEM = "application/x-pem-file"
_CERTIFICATE = {"description": "The certificate", "content": {_PEM: {"schema": {"type": "string"}}}}


@router.get("/api/invites", name="list", dependencies=[Depends(admin)], responses=responses())
async def list_invites(parts: PartsOf) -> list[InviteView]:
    """All invites, the newest first; never their secrets."""
    return list(await parts.invites.table.list())


@router.post("/api/invites", name="create", status_code=201, dependencies=[Depends(admin)], responses=responses(400))
async def create_invite(body: InviteRequest, request: Request, parts: PartsOf, caller: CallerOf) -> InviteCreated:
    """A new invite, with the one command for the other machine. Its secret is in this answer and nowhere else."""
    made = await parts.invites.create(body, by=caller)
    auditing.tell(request, target=made.id, target_id=made.id, after=_told(made))
    return made


@router.delete("/api/invites/{invite}", name="revoke", dependencies=[Depends(admin)], responses=responses(400, 404))
async def revoke_invite(
    invite: Annotated[str, Path(description="Id of the invite.")], request: Request, parts: PartsOf
) -> InviteView:
    """Nobody joins with it any more; who has joined stays."""
    revoked = await parts.invites.revoke(invite)
    auditing.tell(request, target=revoked.id, target_id=revoked.id, before=_told(revoked, "used"))
    return revoked


@router.get(
    "/api/ca.pem",
    dependencies=[Depends(anyone)],
    response_class=PlainTextResponse,
    responses={200: _CERTIFICATE, **responses(404)},
)
async def certificate(parts: PartsOf) -> PlainTextResponse:
    """The CA of this deployment. A machine that joins compares its SHA-256 with the one in its invite."""
    if not parts.invites.door.ca_pem:
        raise HTTPException(404)
    return PlainTextResponse(parts.invites.door.ca_pem, media_type=_PEM)


def _told(invite: InviteView, *also: str) -> dict[str, Any]:
    return invite.model_dump(mode="json", include={"approve", "uses", "labels", "expires_at", *also})

"""Invites, and the CA certificate that a machine checks before it joins."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response
from fastapi.responses import PlainTextResponse

from nodesmith.api import auditing
from nodesmith.api.auth import CallerOf, admin, anyone
from nodesmith.api.dependencies import Deps
from nodesmith.api.idempotency import shown_once
from nodesmith.api.locations import declared_location, locate
from nodesmith.api.problems import responses
from nodesmith.api.views.shapes import fields_of, view_of, views_of
from nodesmith.contracts.http.access import InviteCreated, InviteRequest, InviteView
from nodesmith.contracts.http.shared import Page
from nodesmith.domain.access import Invite, InviteTerms
from nodesmith.domain.errors import UnknownInvite
from nodesmith.services.access.invites import JoinAddress

router = APIRouter(tags=["invites"])

InviteId = Annotated[str, Path(description="Id of the invite.")]

_PEM = "application/x-pem-file"
_CERTIFICATE = {"description": "The certificate", "content": {_PEM: {"schema": {"type": "string"}}}}


@router.get("/api/v1/invites", dependencies=[Depends(admin)], responses=responses())
async def list_invites(deps: Deps) -> Page[InviteView]:
    """All invites, newest first, without their secrets."""
    return Page(items=views_of(InviteView, await deps.invites.table.list()))


@router.get("/api/v1/invites/{invite}", dependencies=[Depends(admin)], responses=responses(400, 404))
async def get_invite(invite: InviteId, deps: Deps) -> InviteView:
    """One invite, without its secret."""
    found = await deps.invites.table.find(invite)
    if found is None:
        raise UnknownInvite(f"There is no invite {invite}.", invite=invite)
    return view_of(InviteView, found)


@router.post(
    "/api/v1/invites",
    status_code=201,
    dependencies=[Depends(admin), Depends(shown_once)],
    responses={**declared_location(201), **responses(400)},
)
async def create_invite(
    body: InviteRequest, request: Request, response: Response, deps: Deps, caller: CallerOf
) -> InviteCreated:
    """Create an invite, with the command to run on the other machine. Only this response contains its secret."""
    invite, token = await deps.invites.create(InviteTerms(**fields_of(body)), by=caller)
    made = _created(invite, token, deps.invites.join_address)
    auditing.record(request, target=made.id, target_id=made.id, after=_audit_facts(made))
    locate(response, f"/api/v1/invites/{made.id}")
    return made


@router.delete("/api/v1/invites/{invite}", dependencies=[Depends(admin)], responses=responses(400, 404))
async def revoke_invite(invite: InviteId, request: Request, deps: Deps) -> InviteView:
    """The invite admits no more nodes; nodes that have joined stay."""
    revoked = view_of(InviteView, await deps.invites.revoke(invite))
    auditing.record(request, target=revoked.id, target_id=revoked.id, before=_audit_facts(revoked, "used"))
    return revoked


@router.get(
    "/api/v1/ca.pem",
    dependencies=[Depends(anyone)],
    response_class=PlainTextResponse,
    responses={200: _CERTIFICATE, **responses(404)},
)
async def get_ca_certificate(deps: Deps) -> PlainTextResponse:
    """The CA certificate of this deployment. A machine compares its SHA-256 with the one in its invite."""
    if not deps.invites.join_address.ca_pem:
        raise HTTPException(404)
    return PlainTextResponse(deps.invites.join_address.ca_pem, media_type=_PEM)


def _created(invite: Invite, token: str, join: JoinAddress) -> InviteCreated:
    return InviteCreated(
        **fields_of(view_of(InviteView, invite)),
        token=token,
        url=join.url,
        ca_sha256=join.ca_sha256,
        trust=join.root.fingerprint,
        command=join.command(token),
    )


def _audit_facts(invite: InviteView, *also: str) -> dict[str, Any]:
    return invite.model_dump(mode="json", include={"approve", "uses", "labels", "expires_at", *also})

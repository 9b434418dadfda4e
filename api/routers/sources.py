"""How hosts are reached: set by an admin, told only to a node that asks with its own credential."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Path, Query, Request

from api import auditing
from api.auth import Admin, Bearer, NodeId, admin, itself
from api.parts import PartsOf
from api.problems import responses
from contracts.http import Message
from contracts.sources import SourceAccess, SourceRequest, SourceView
from domain.errors import InvalidRequest, NotAllowed, NotSignedIn, UnknownSource
from domain.secrets import hash_token

router = APIRouter(prefix="/api", tags=["sources"])

_HOST = r"^[A-Za-z0-9.\-\[\]:]+$"
Host = Annotated[str, Path(max_length=255, pattern=_HOST, description="name, or name:port")]


@router.get("/sources", name="list", dependencies=[Depends(admin)], responses=responses())
async def list_sources(parts: PartsOf) -> list[SourceView]:
    """For which hosts something is set; never the passwords."""
    return list(await parts.gallery.sources.list())


@router.put("/sources/{host}", name="set", responses=responses(400))
async def set_source(host: Host, body: SourceRequest, request: Request, parts: PartsOf, actor: Admin) -> SourceView:
    """Say how a host is reached: credential, certificates, proxy; all of it at once."""
    _check(body)
    before = await _told(parts, host)
    view = await parts.gallery.sources.put(host.casefold(), body, by=actor)
    auditing.tell(request, target=view.host, before=before, after=view.model_dump(mode="json", include=_TOLD))
    return view


@router.delete("/sources/{host}", name="remove", responses=responses(400, 404))
async def remove_source(host: Host, request: Request, parts: PartsOf, _actor: Admin) -> Message:
    """Forget what was set for a host."""
    before = await _told(parts, host)
    if not await parts.gallery.sources.remove(host.casefold()):
        raise UnknownSource(f"Nothing is set for {host}.", host=host)
    auditing.tell(request, target=host.casefold(), before=before)
    return Message(message="source removed")


async def _told(parts: PartsOf, host: str) -> dict[str, Any] | None:
    """What the audit trail may know of what is set for a host."""
    found = (each for each in await parts.gallery.sources.list() if each.host == host.casefold())
    return next((each.model_dump(mode="json", include=_TOLD) for each in found), None)


@router.get(
    "/node/{node}/sources",
    tags=["nodes: self-service"],
    dependencies=[Depends(itself)],
    responses=responses(400, 404),
    summary="How a host is reached",
)
async def access(
    node: NodeId, parts: PartsOf, token: Bearer, host: Annotated[str, Query(description="name, or name:port")] = ""
) -> SourceAccess:
    """For a node with its own credential, and for nobody else: not for admins, nor with the registration token."""
    if not token:
        raise NotSignedIn
    speaker = await parts.nodes.with_credential(hash_token(token))
    if speaker is None:
        raise NotSignedIn
    if node not in (speaker.id, speaker.name):
        raise NotAllowed("A node asks for itself only.")
    if speaker.approved_at is None:
        raise NotAllowed("The node waits for approval.")
    if not re.fullmatch(_HOST, host):
        raise InvalidRequest("host: a name, or name:port, is expected.", field="host")
    found = await parts.gallery.sources.access(host)
    if found is None:
        raise UnknownSource(f"Nothing is set for {host}.", host=host)
    return found


_TOLD = {"username", "has_password", "has_ca", "has_proxy"}


def _check(body: SourceRequest) -> None:
    if body.ca and "-----BEGIN CERTIFICATE-----" not in body.ca:
        raise InvalidRequest("ca: certificates in PEM are expected.", field="ca")
    if "PRIVATE KEY-----" in body.ca:
        raise InvalidRequest("ca: there is a private key in it; nodes need the certificates alone.", field="ca")
    try:
        parts = urlsplit(body.proxy)
        ok = not body.proxy or (parts.scheme in ("http", "https") and bool(parts.hostname))
    except ValueError:
        ok = False
    if not ok or re.search(r"\s", body.proxy):
        raise InvalidRequest("proxy: an address like http://proxy:3128 is expected.", field="proxy")

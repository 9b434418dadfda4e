"""Source settings: how hosts are reached. Admins set them; only a node with its own credential can read them."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Path, Query, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, Bearer, NodeId, admin, own_node
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.contracts.http.shared import Message
from nodesmith.contracts.http.sources import SourceAccess, SourceRequest, SourceView
from nodesmith.domain.errors import InvalidRequest, NotAllowed, NotSignedIn, UnknownSource
from nodesmith.domain.secrets import hash_token

router = APIRouter(prefix="/api", tags=["sources"])

_HOST = r"^[A-Za-z0-9.\-\[\]:]+$"
Host = Annotated[str, Path(max_length=255, pattern=_HOST, description="name, or name:port")]


@router.get("/sources", name="list", dependencies=[Depends(admin)], responses=responses())
async def list_sources(deps: Deps) -> list[SourceView]:
    """The hosts with settings, without the passwords."""
    return list(await deps.gallery.sources.list())


@router.put("/sources/{host}", name="set", responses=responses(400))
async def set_source(host: Host, body: SourceRequest, request: Request, deps: Deps, actor: Admin) -> SourceView:
    """Set how a host is reached: credential, certificates and proxy, all at once."""
    _check(body)
    before = await _audit_facts(deps, host)
    view = await deps.gallery.sources.put(host.casefold(), body, by=actor)
    auditing.record(
        request, target=view.host, before=before, after=view.model_dump(mode="json", include=_AUDITED_FIELDS)
    )
    return view


@router.delete("/sources/{host}", name="remove", responses=responses(400, 404))
async def remove_source(host: Host, request: Request, deps: Deps, _actor: Admin) -> Message:
    """Remove the settings of a host."""
    before = await _audit_facts(deps, host)
    if not await deps.gallery.sources.remove(host.casefold()):
        raise UnknownSource(f"Nothing is set for {host}.", host=host)
    auditing.record(request, target=host.casefold(), before=before)
    return Message(message="source removed")


async def _audit_facts(deps: Deps, host: str) -> dict[str, Any] | None:
    """The settings of a host, without secrets, for the audit trail."""
    found = (each for each in await deps.gallery.sources.list() if each.host == host.casefold())
    return next((each.model_dump(mode="json", include=_AUDITED_FIELDS) for each in found), None)


@router.get(
    "/node/{node}/sources",
    tags=["nodes: self-service"],
    dependencies=[Depends(own_node)],
    responses=responses(400, 404),
    summary="How a host is reached",
)
async def access(
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


_AUDITED_FIELDS = {"username", "has_password", "has_ca", "has_proxy", "realms"}


def _check(body: SourceRequest) -> None:
    if body.ca and "-----BEGIN CERTIFICATE-----" not in body.ca:
        raise InvalidRequest("ca: certificates in PEM are expected.", field="ca")
    if "PRIVATE KEY-----" in body.ca:
        raise InvalidRequest("ca: it contains a private key; send the certificates only.", field="ca")
    try:
        parts = urlsplit(body.proxy)
        ok = not body.proxy or (parts.scheme in ("http", "https") and bool(parts.hostname))
    except ValueError:
        ok = False
    if not ok or re.search(r"\s", body.proxy):
        raise InvalidRequest("proxy: an address like http://proxy:3128 is expected.", field="proxy")

"""Source settings: how hosts are reached. Admins set them; only nodes read the passwords (`api/v1/node_access.py`)."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Path, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, admin
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.views.shapes import fields_of, view_of, views_of
from nodesmith.contracts.http.shared import Message, Page
from nodesmith.contracts.http.sources import SourceRequest, SourceView
from nodesmith.domain.errors import InvalidRequest, UnknownSource
from nodesmith.domain.source_settings import SourceSettings

router = APIRouter(prefix="/api/v1", tags=["sources"])

_HOST = r"^[A-Za-z0-9.\-\[\]:]+$"
Host = Annotated[str, Path(max_length=255, pattern=_HOST, description="name, or name:port")]


@router.get("/sources", dependencies=[Depends(admin)], responses=responses())
async def list_sources(deps: Deps) -> Page[SourceView]:
    """The hosts with settings, without the passwords."""
    return Page(items=views_of(SourceView, await deps.gallery.sources.list()))


@router.put("/sources/{host}", responses=responses(400))
async def set_source(host: Host, body: SourceRequest, request: Request, deps: Deps, actor: Admin) -> SourceView:
    """Set how a host is reached: credential, certificates and proxy, all at once."""
    _check(body)
    before = await _audit_facts(deps, host)
    stored = await deps.gallery.sources.put(host.casefold(), SourceSettings(**fields_of(body)), by=actor)
    view = view_of(SourceView, stored)
    auditing.record(
        request, target=view.host, before=before, after=view.model_dump(mode="json", include=_AUDITED_FIELDS)
    )
    return view


@router.delete("/sources/{host}", responses=responses(400, 404))
async def delete_source(host: Host, request: Request, deps: Deps, _actor: Admin) -> Message:
    """Remove the settings of a host."""
    before = await _audit_facts(deps, host)
    if not await deps.gallery.sources.remove(host.casefold()):
        raise UnknownSource(f"Nothing is set for {host}.", host=host)
    auditing.record(request, target=host.casefold(), before=before)
    return Message(message="source removed")


async def _audit_facts(deps: Deps, host: str) -> dict[str, Any] | None:
    """The settings of a host, without secrets, for the audit trail."""
    found = (each for each in await deps.gallery.sources.list() if each.host == host.casefold())
    views = (view_of(SourceView, each) for each in found)
    return next((each.model_dump(mode="json", include=_AUDITED_FIELDS) for each in views), None)


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

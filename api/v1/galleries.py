"""Galleries, which list backends, and uploaded archives."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.requests import ClientDisconnect

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, Bearer, Session, still_admitted, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.etags import tagged
from nodesmith.api.locations import declared_location, locate
from nodesmith.api.problems import responses
from nodesmith.api.views.shapes import fields_of, view_of, views_of
from nodesmith.contracts.http.galleries import GalleryPlace, GalleryRequest, GalleryView, TrustRequest, UploadView
from nodesmith.contracts.http.shared import Message, Page
from nodesmith.domain.errors import UnknownBackend, UploadRefused
from nodesmith.domain.gallery import GallerySettings, TrustSettings, Upload

router = APIRouter(prefix="/api/v1", tags=["galleries"], dependencies=[Depends(viewer)])

_WORD = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Name = Annotated[str, Path(max_length=128, pattern=_WORD, description="Name of the gallery.")]
Backend = Annotated[str, Path(alias="name", max_length=128, pattern=_WORD, description="Name of the backend.")]
Version = Annotated[str, Path(max_length=128, pattern=_WORD, description="Its version.")]
About = Annotated[str, Query(max_length=4096, description="What it is, for the catalogue.")]
Tags = Annotated[list[str] | None, Query(max_length=32, description="A tag for the catalogue; may be repeated.")]
Sha256 = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$|^$", description="Expected digest of the archive.")]

_ARCHIVE = {
    "requestBody": {
        "required": True,
        "description": "The archive itself: .tar.gz or .tar.zst.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


_UNCHANGED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"ETag": {"description": "Send it as `If-None-Match`.", "schema": {"type": "string"}}}},
    304: {"description": "Nothing has changed since the answer with that ETag."},
}


@router.get("/galleries", responses={**_UNCHANGED, **responses()})
async def list_galleries(request: Request, response: Response, deps: Deps) -> Page[GalleryView]:
    """All galleries in order of precedence, with the result of their last read."""
    return tagged(request, response, Page(items=views_of(GalleryView, await deps.gallery.galleries.list())))


@router.get("/galleries/{name}", responses={**_UNCHANGED, **responses(400, 404)})
async def get_gallery(name: Name, request: Request, response: Response, deps: Deps) -> GalleryView:
    """One gallery, with the result of its last read."""
    return tagged(request, response, await _view(deps, name))


@router.post("/galleries", status_code=201, responses={**declared_location(201), **responses(400, 409)})
async def create_gallery(
    body: GalleryRequest, request: Request, response: Response, deps: Deps, actor: Admin
) -> GalleryView:
    """Add a gallery. It is read first; a gallery without usable entries is refused."""
    added = view_of(GalleryView, await deps.gallery.galleries.add(GallerySettings(**fields_of(body)), by=actor))
    auditing.record(request, target=added.name, after=_audit_facts(added))
    locate(response, f"{router.prefix}/galleries/{added.name}")
    return added


@router.put("/galleries/{name}/trust", responses=responses(400, 404))
async def set_gallery_trust(name: Name, body: TrustRequest, request: Request, deps: Deps, _actor: Admin) -> GalleryView:
    """Set which signatures its artifacts need. It is read first; if it does not comply, nothing changes."""
    before = _audit_facts(await _view(deps, name))
    view = view_of(GalleryView, await deps.gallery.galleries.trust(name, TrustSettings(**fields_of(body))))
    auditing.record(request, target=name, before=before, after=_audit_facts(view))
    return view


@router.delete("/galleries/{name}", responses=responses(400, 404))
async def delete_gallery(name: Name, request: Request, deps: Deps, _actor: Admin) -> Message:
    """Remove a gallery. Installed backends stay installed."""
    before = _audit_facts(await _view(deps, name))
    await deps.gallery.galleries.remove(name)
    auditing.record(request, target=name, before=before)
    return Message(message="gallery removed")


@router.post("/galleries/refresh", responses=responses())
async def refresh_galleries(request: Request, deps: Deps, _actor: Admin) -> Page[GalleryView]:
    """Read all galleries again now. One that fails keeps its last good copy and reports why."""
    read = views_of(GalleryView, await deps.gallery.galleries.refresh())
    auditing.record(request, target="galleries", after={gallery.name: _how(gallery) for gallery in read})
    return Page(items=read)


@router.post("/galleries/{name}/refresh", responses=responses(400, 404))
async def refresh_gallery(name: Name, request: Request, deps: Deps, _actor: Admin) -> GalleryView:
    """Read one gallery again now."""
    read = view_of(GalleryView, next(iter(await deps.gallery.galleries.refresh(name))))
    auditing.record(request, target=name, after=_how(read))
    return read


@router.get("/uploads", responses=responses())
async def list_uploads(deps: Deps) -> Page[UploadView]:
    """The archives that were uploaded into the built-in gallery."""
    return Page(items=views_of(UploadView, await deps.gallery.upload_table.list()))


@router.get("/uploads/{name}/{version}", responses=responses(400, 404))
async def get_upload(name: Backend, version: Version, deps: Deps) -> UploadView:
    """One archive that was uploaded into the built-in gallery."""
    found = await deps.gallery.upload_table.find(name, version)
    if found is None:
        raise UnknownBackend(f"{name} {version} was not uploaded.", backend=name)
    return view_of(UploadView, found)


@router.put(
    "/uploads/{name}/{version}",
    status_code=201,
    responses={**declared_location(201), **responses(400, 409)},
    openapi_extra=_ARCHIVE,
)
async def create_upload(
    name: Backend,
    version: Version,
    request: Request,
    response: Response,
    deps: Deps,
    *,
    actor: Admin,
    token: Bearer,
    session: Session,
    sha256: Sha256 = "",
    description: About = "",
    tag: Tags = None,
) -> UploadView:
    """Upload an archive into the built-in gallery, from where nodes fetch it. A version is never replaced."""
    wanted = Upload(name=name, version=version, sha256=sha256, description=description, tags=tuple(tag or ()))
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() else 0
    received = _received(request, lambda: still_admitted(deps, token, session))
    stored = await deps.gallery.uploads.take(wanted, received, by=actor, announced=announced)
    kept = view_of(UploadView, stored)
    auditing.record(request, target=f"{name} {version}", after=kept.model_dump(mode="json", include={"sha256", "size"}))
    locate(response, f"{router.prefix}/uploads/{name}/{version}")
    return kept


async def _received(request: Request, check_again: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
    """Yield the body, then check the credential again: an upload takes long, and the token may have been revoked."""
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        raise UploadRefused("The upload ended before it was complete.") from None
    await check_again()


@router.delete("/uploads/{name}/{version}", responses=responses(400, 404))
async def delete_upload(name: Backend, version: Version, request: Request, deps: Deps, _actor: Admin) -> UploadView:
    """Remove an archive from the built-in gallery. Nodes that have it keep it."""
    gone = view_of(UploadView, await deps.gallery.uploads.remove(name, version))
    auditing.record(
        request, target=f"{name} {version}", before=gone.model_dump(mode="json", include={"sha256", "size"})
    )
    return gone


async def _view(deps: Deps, name: str) -> GalleryView:
    return view_of(GalleryView, await deps.gallery.galleries.find(name))


def _audit_facts(gallery: GalleryView) -> dict[str, Any]:
    """The admin's settings of a gallery, for the audit trail."""
    return gallery.model_dump(mode="json", include={*GalleryPlace.model_fields, *_TRUSTED})


_TRUSTED = ("policy", "key_ids", "threshold", "signed_index")


def _how(gallery: GalleryView) -> dict[str, Any]:
    return gallery.model_dump(mode="json", include={"entries", "unusable", "error", "index_version"})

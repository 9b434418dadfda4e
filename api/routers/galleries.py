"""Galleries, which list backends, and uploaded archives."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.requests import ClientDisconnect

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.contracts.http.galleries import GalleryPlace, GalleryRequest, GalleryView, TrustRequest, UploadView
from nodesmith.contracts.http.shared import Message
from nodesmith.domain.errors import UploadRefused

router = APIRouter(prefix="/api", tags=["galleries"], dependencies=[Depends(viewer)])

Name = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Sha256 = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$|^$", description="Expected digest of the archive.")]

_ARCHIVE = {
    "requestBody": {
        "required": True,
        "description": "The archive itself: .tar.gz or .tar.zst.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/galleries", name="list", responses=responses())
async def list_galleries(deps: Deps) -> list[GalleryView]:
    """All galleries in order of precedence, with the result of their last read."""
    return list(await deps.gallery.galleries.list())


@router.post("/galleries", name="add", status_code=201, responses=responses(400, 409))
async def add_gallery(body: GalleryRequest, request: Request, deps: Deps, actor: Admin) -> GalleryView:
    """Add a gallery. It is read first; a gallery without usable entries is refused."""
    added = await deps.gallery.galleries.add(body, by=actor)
    auditing.record(request, target=added.name, after=_audit_facts(added))
    return added


@router.put("/galleries/{name}/trust", name="trust", responses=responses(400, 404))
async def trust_gallery(name: Name, body: TrustRequest, request: Request, deps: Deps, _actor: Admin) -> GalleryView:
    """Set which signatures its artifacts need. It is read first; if it does not comply, nothing changes."""
    before = _audit_facts(await deps.gallery.galleries.find(name))
    view = await deps.gallery.galleries.trust(name, body)
    auditing.record(request, target=name, before=before, after=_audit_facts(view))
    return view


@router.delete("/galleries/{name}", name="remove", responses=responses(400, 404))
async def remove_gallery(name: Name, request: Request, deps: Deps, _actor: Admin) -> Message:
    """Remove a gallery. Installed backends stay installed."""
    before = _audit_facts(await deps.gallery.galleries.find(name))
    await deps.gallery.galleries.remove(name)
    auditing.record(request, target=name, before=before)
    return Message(message="gallery removed")


@router.post("/galleries/refresh", name="refresh_all", responses=responses())
async def refresh_galleries(request: Request, deps: Deps, _actor: Admin) -> list[GalleryView]:
    """Read all galleries again now. One that fails keeps its last good copy and reports why."""
    read = list(await deps.gallery.galleries.refresh())
    auditing.record(request, target="galleries", after={gallery.name: _how(gallery) for gallery in read})
    return read


@router.post("/galleries/{name}/refresh", name="refresh", responses=responses(400, 404))
async def refresh_gallery(name: Name, request: Request, deps: Deps, _actor: Admin) -> GalleryView:
    """Read one gallery again now."""
    read = next(iter(await deps.gallery.galleries.refresh(name)))
    auditing.record(request, target=name, after=_how(read))
    return read


@router.get("/uploads", name="list_uploads", responses=responses())
async def list_uploads(deps: Deps) -> list[UploadView]:
    """The archives that were uploaded into the built-in gallery."""
    return list(await deps.gallery.upload_table.list())


@router.put(
    "/uploads/{name}/{version}",
    name="upload",
    status_code=201,
    responses=responses(400, 409),
    openapi_extra=_ARCHIVE,
)
async def upload(
    name: Name,
    version: Name,
    request: Request,
    deps: Deps,
    actor: Admin,
    *,
    sha256: Sha256 = "",
    description: Annotated[str, Query(max_length=4096)] = "",
    tag: Annotated[list[str] | None, Query(max_length=32)] = None,
) -> UploadView:
    """Upload an archive into the built-in gallery, from where nodes fetch it. A version is never replaced."""
    wanted = UploadView(
        name=name, version=version, uri="", sha256=sha256, description=description, tags=tag or [], uploaded_by=actor
    )
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() else 0
    kept = await deps.gallery.uploads.take(wanted, _received(request), by=actor, announced=announced)
    auditing.record(request, target=f"{name} {version}", after=kept.model_dump(mode="json", include={"sha256", "size"}))
    return kept


async def _received(request: Request) -> AsyncIterator[bytes]:
    """Yield the body; a client that disconnects is not our failure."""
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        raise UploadRefused("The upload ended before it was complete.") from None


@router.delete("/uploads/{name}/{version}", name="remove_upload", responses=responses(400, 404))
async def remove_upload(name: Name, version: Name, request: Request, deps: Deps, _actor: Admin) -> UploadView:
    """Remove an archive from the built-in gallery. Nodes that have it keep it."""
    gone = await deps.gallery.uploads.remove(name, version)
    auditing.record(
        request, target=f"{name} {version}", before=gone.model_dump(mode="json", include={"sha256", "size"})
    )
    return gone


def _audit_facts(gallery: GalleryView) -> dict[str, Any]:
    """The admin's settings of a gallery, for the audit trail."""
    return gallery.model_dump(mode="json", include={*GalleryPlace.model_fields, *_TRUSTED})


_TRUSTED = ("policy", "key_ids", "threshold", "signed_index")


def _how(gallery: GalleryView) -> dict[str, Any]:
    return gallery.model_dump(mode="json", include={"entries", "unusable", "error", "index_version"})

"""Galleries: where backends come from; and archives of the operator's own."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.requests import ClientDisconnect

from api import auditing
from api.auth import Admin, viewer
from api.parts import PartsOf
from api.problems import responses
from contracts.galleries import GalleryRequest, GalleryView, UploadView
from contracts.http import Message
from domain.errors import UploadRefused

router = APIRouter(prefix="/api", tags=["galleries"], dependencies=[Depends(viewer)])

Name = Annotated[str, Path(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Sha256 = Annotated[str, Query(pattern=r"^[0-9a-f]{64}$|^$", description="What the archive must have.")]

_ARCHIVE = {
    "requestBody": {
        "required": True,
        "description": "The archive itself: .tar.gz or .tar.zst.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/galleries", name="list", responses=responses())
async def list_galleries(parts: PartsOf) -> list[GalleryView]:
    """All galleries in the order in which they win, and how their last reading went."""
    return list(await parts.gallery.galleries.list())


@router.post("/galleries", name="add", status_code=201, responses=responses(400, 409))
async def add_gallery(body: GalleryRequest, request: Request, parts: PartsOf, actor: Admin) -> GalleryView:
    """Add a gallery. It is read first: one that lists nothing usable is not added."""
    added = await parts.gallery.galleries.add(body, by=actor)
    auditing.tell(request, target=added.name, after=_told(added))
    return added


@router.delete("/galleries/{name}", name="remove", responses=responses(400, 404))
async def remove_gallery(name: Name, request: Request, parts: PartsOf, _actor: Admin) -> Message:
    """Remove a gallery. What was installed from it stays where it is."""
    before = _told(await parts.gallery.galleries.find(name))
    await parts.gallery.galleries.remove(name)
    auditing.tell(request, target=name, before=before)
    return Message(message="gallery removed")


@router.post("/galleries/refresh", name="refresh_all", responses=responses())
async def refresh_galleries(request: Request, parts: PartsOf, _actor: Admin) -> list[GalleryView]:
    """Read all galleries again, now. One that fails keeps its last good copy and says why."""
    read = list(await parts.gallery.galleries.refresh())
    auditing.tell(request, target="galleries", after={gallery.name: _how(gallery) for gallery in read})
    return read


@router.post("/galleries/{name}/refresh", name="refresh", responses=responses(400, 404))
async def refresh_gallery(name: Name, request: Request, parts: PartsOf, _actor: Admin) -> GalleryView:
    """Read one gallery again, now."""
    read = next(iter(await parts.gallery.galleries.refresh(name)))
    auditing.tell(request, target=name, after=_how(read))
    return read


@router.get("/uploads", name="list_uploads", responses=responses())
async def list_uploads(parts: PartsOf) -> list[UploadView]:
    """What was uploaded into the built-in gallery."""
    return list(await parts.gallery.upload_table.list())


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
    parts: PartsOf,
    actor: Admin,
    *,
    sha256: Sha256 = "",
    description: Annotated[str, Query(max_length=4096)] = "",
    tag: Annotated[list[str] | None, Query(max_length=32)] = None,
) -> UploadView:
    """Put an archive into the built-in gallery: nodes fetch it from here. A version is never replaced."""
    wanted = UploadView(
        name=name, version=version, uri="", sha256=sha256, description=description, tags=tag or [], uploaded_by=actor
    )
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() else 0
    kept = await parts.gallery.uploads.take(wanted, _received(request), by=actor, announced=announced)
    auditing.tell(request, target=f"{name} {version}", after=kept.model_dump(mode="json", include={"sha256", "size"}))
    return kept


async def _received(request: Request) -> AsyncIterator[bytes]:
    """What comes of the body; a client that hangs up is no failure of ours."""
    try:
        async for part in request.stream():
            yield part
    except ClientDisconnect:
        raise UploadRefused("The upload broke off before its end.") from None


@router.delete("/uploads/{name}/{version}", name="remove_upload", responses=responses(400, 404))
async def remove_upload(name: Name, version: Name, request: Request, parts: PartsOf, _actor: Admin) -> UploadView:
    """Take an archive off the built-in gallery. Nodes that have it keep it."""
    gone = await parts.gallery.uploads.remove(name, version)
    auditing.tell(request, target=f"{name} {version}", before=gone.model_dump(mode="json", include={"sha256", "size"}))
    return gone


def _told(gallery: GalleryView) -> dict[str, Any]:
    """What somebody decided about it, as the audit trail keeps it."""
    return gallery.model_dump(mode="json", include=set(GalleryRequest.model_fields))


def _how(gallery: GalleryView) -> dict[str, Any]:
    return gallery.model_dump(mode="json", include={"entries", "unusable", "error"})

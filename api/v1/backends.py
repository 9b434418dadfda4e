"""The catalogue of backends, available upgrades, and which nodes a backend fits."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from nodesmith.api.auth import Operator, viewer
from nodesmith.api.catalogue_pages import marked_page
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.views.shapes import views_of
from nodesmith.contracts.http.backends import BackendPage, BackendView
from nodesmith.contracts.http.galleries import NodeSuitability, UpgradeInfo
from nodesmith.contracts.http.shared import Page
from nodesmith.services.catalogue.search import EVERYTHING, Place, Search
from nodesmith.store.cursors import bad_cursor, cursor_after, read_text

router = APIRouter(prefix="/api/v1/backends", tags=["backends"], dependencies=[Depends(viewer)])


class Sort(StrEnum):
    NAME = "name"
    GALLERY = "gallery"
    LICENSE = "license"
    STATUS = "status"


_ORDERS = {Sort.NAME: "name", Sort.GALLERY: "repository", Sort.LICENSE: "license", Sort.STATUS: "status"}

Text = Annotated[str, Query(max_length=200, description="Words in name, description, tags or gallery.")]
Tag = Annotated[str, Query(max_length=200, description="Only backends with this tag.")]
Gallery = Annotated[str, Query(max_length=200, description="Only backends of this gallery.")]
SortBy = Annotated[Sort, Query(description="What to sort by; `status`: installed ones first.")]
Descending = Annotated[bool, Query(description="The reverse order.")]
Cursor = Annotated[str, Query(max_length=2000, description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=EVERYTHING, description="At most this many.")]


@router.get("", responses=responses(400))
async def list_backends(
    deps: Deps,
    *,
    text: Text = "",
    tag: Tag = "",
    gallery: Gallery = "",
    sort: SortBy = Sort.NAME,
    descending: Descending = False,
    cursor: Cursor = "",
    limit: Limit = 1000,
) -> BackendPage:
    """Backends that can be installed by name, where they are installed, and which cannot be used and why."""
    search = Search(text, tag, gallery, items=limit, sort=_ORDERS[sort], descending=descending)
    order = f"backends by {sort}{' descending' if descending else ''}"
    found, place = await marked_page(deps, search, _place(cursor, order) if cursor else None)
    return BackendPage(
        items=[BackendView.of(entry) for entry in found.backends],
        next_cursor=_cursor(order, place) if place else None,
        total=found.availableBackends,
        tags=found.allTags,
        unusable=found.unusable,
        stale=found.stale,
    )


@router.get("/upgrades", responses=responses())
async def list_upgrades(deps: Deps) -> Page[UpgradeInfo]:
    """Backends that can be upgraded: the version most nodes have, the gallery's, and the nodes that differ."""
    await deps.gallery.galleries.sync()
    return Page(items=views_of(UpgradeInfo, (await deps.gallery.upgrades.list()).values()))


@router.post("/upgrades/check", responses=responses())
async def check_upgrades(deps: Deps, _actor: Operator) -> Page[UpgradeInfo]:
    """Resolve the tags of installed backends at their registries now, and return the available upgrades."""
    await deps.gallery.galleries.sync()
    await deps.gallery.upgrades.check()
    return Page(items=views_of(UpgradeInfo, (await deps.gallery.upgrades.list()).values()))


@router.get("/suitability", responses=responses(400, 404))
async def list_suitability(
    deps: Deps, backend: Annotated[str, Query(min_length=1, max_length=255, description="A name, or gallery@name.")]
) -> Page[NodeSuitability]:
    """Whether a backend fits each node, and which build the node would get."""
    found = await deps.gallery.catalogue_service.suitability(backend, await deps.nodes.list())
    return Page(items=views_of(NodeSuitability, found))


def _cursor(order: str, place: Place) -> str:
    return cursor_after(order, place.key, "\n".join((place.gallery, place.name, place.version)))


def _place(cursor: str, order: str) -> Place:
    key, entry = read_text(cursor, order)
    match entry.split("\n"):
        case [gallery, name, version]:
            return Place(key, gallery, name, version)
        case _:
            raise bad_cursor()

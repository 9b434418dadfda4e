"""LocalAI's catalogue of backends, available upgrades, and job status."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from nodesmith.api.auth import Operator, viewer
from nodesmith.api.catalogue_pages import marked_page
from nodesmith.api.dependencies import Deps
from nodesmith.api.localai.views import batch_job_status, job_status
from nodesmith.api.problems import responses
from nodesmith.api.views.batches import batch_view
from nodesmith.api.views.operations import operation_view
from nodesmith.api.views.shapes import view_of
from nodesmith.contracts.http.galleries import CataloguePage, UpgradeInfo
from nodesmith.contracts.http.localai import JobStatus
from nodesmith.services.catalogue.search import EVERYTHING, Search

router = APIRouter(prefix="/api/backends", tags=["LocalAI"], dependencies=[Depends(viewer)])


class Sort(StrEnum):
    """LocalAI's orders."""

    NAME = "name"
    REPOSITORY = "repository"
    LICENSE = "license"
    STATUS = "status"


class Order(StrEnum):
    ASCENDING = "asc"
    DESCENDING = "desc"


@router.get("", responses=responses(400))
async def list_catalogue(
    deps: Deps,
    *,
    term: Annotated[str, Query(max_length=200, description="Words in name, description, tags or gallery.")] = "",
    tag: Annotated[str, Query(max_length=200)] = "",
    gallery: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    items: Annotated[int, Query(ge=1, le=EVERYTHING, description="Page size; default: all.")] = EVERYTHING,
    sort: Sort = Sort.NAME,
    order: Order = Order.ASCENDING,
) -> CataloguePage:
    """Backends that can be installed by name, where they are installed, and which cannot be used and why."""
    descending = order is Order.DESCENDING
    found, _ = await marked_page(deps, Search(term, tag, gallery, page, items, sort, descending=descending))
    return found


@router.get("/upgrades", responses=responses())
async def map_upgrades(deps: Deps) -> dict[str, UpgradeInfo]:
    """Name of a backend -> the version most nodes have, the gallery's version, and the nodes that differ."""
    await deps.gallery.galleries.sync()
    return await _upgrades(deps)


@router.post("/upgrades/check", responses=responses())
async def check_for_upgrades(deps: Deps, _actor: Operator) -> dict[str, UpgradeInfo]:
    """Resolve the tags of installed backends at their registries now, and return the available upgrades."""
    await deps.gallery.galleries.sync()
    await deps.gallery.upgrades.check()
    return await _upgrades(deps)


@router.get("/usecases", responses=responses())
async def list_uses(deps: Deps) -> dict[str, list[str]]:
    """Name of a backend -> its uses, from the tags of its gallery entry."""
    return await deps.gallery.localai.uses()


@router.get("/job/{job_id}", response_model_exclude_none=True, responses=responses(400))
async def get_job(job_id: Annotated[str, Path(description="The jobID of an install.")], deps: Deps) -> JobStatus:
    """LocalAI's job status; an unknown id is reported as `queued`."""
    operation = await deps.operations.find(job_id)
    if operation is not None:
        return job_status(operation_view(operation))
    batch = await deps.batches.find(job_id)
    return batch_job_status(batch_view(batch)) if batch is not None else JobStatus()


async def _upgrades(deps: Deps) -> dict[str, UpgradeInfo]:
    return {name: view_of(UpgradeInfo, each) for name, each in (await deps.gallery.upgrades.list()).items()}

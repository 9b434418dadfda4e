"""The catalogue of backends, what can be upgraded, and LocalAI's job status."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from api.auth import Operator, viewer
from api.localai import batch_job_status, job_status, with_work
from api.parts import PartsOf
from api.problems import responses
from contracts.galleries import CataloguePage, NodeSuitability, UpgradeInfo
from contracts.localai_http import JobStatus
from contracts.operation_http import OperationFilter
from services.catalogue import EVERYTHING, Search

router = APIRouter(prefix="/api/backends", tags=["backends"], dependencies=[Depends(viewer)])

_WORK_LOOKED_AT = 500
"""open operations that the catalogue is marked with, the oldest; `GET /api/operations` has them all"""


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
async def list_backends(
    parts: PartsOf,
    *,
    term: Annotated[str, Query(max_length=200, description="Words in name, description, tags or gallery.")] = "",
    tag: Annotated[str, Query(max_length=200)] = "",
    gallery: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    items: Annotated[int, Query(ge=1, le=EVERYTHING, description="How many a page; default: all.")] = EVERYTHING,
    sort: Sort = Sort.NAME,
    order: Order = Order.ASCENDING,
) -> CataloguePage:
    """What can be installed by name, where it is installed, and what cannot be used and why."""
    descending = order is Order.DESCENDING
    found = await parts.gallery.desk.page(Search(term, tag, gallery, page, items, sort, descending=descending))
    if found.stale:
        return found
    return with_work(found, await parts.history.open_ones(OperationFilter(), limit=_WORK_LOOKED_AT))


@router.get("/upgrades", responses=responses())
async def list_upgrades(parts: PartsOf) -> dict[str, UpgradeInfo]:
    """Name of a backend -> what most nodes have, what the gallery has, and who differs from most."""
    await parts.gallery.galleries.sync()
    return await parts.gallery.upgrades.list()


@router.post("/upgrades/check", responses=responses())
async def check_upgrades(parts: PartsOf, _actor: Operator) -> dict[str, UpgradeInfo]:
    """Ask the registries now what the tags of installed backends stand for, and tell what follows."""
    await parts.gallery.galleries.sync()
    await parts.gallery.upgrades.check()
    return await parts.gallery.upgrades.list()


@router.get("/usecases", responses=responses())
async def list_uses(parts: PartsOf) -> dict[str, list[str]]:
    """Name of a backend -> what it is for, as the tags of its gallery tell it."""
    return await parts.gallery.localai.uses()


@router.get("/suitability", responses=responses(400, 404))
async def list_suitability(
    parts: PartsOf, backend: Annotated[str, Query(max_length=255, description="A name, or gallery@name.")] = ""
) -> list[NodeSuitability]:
    """How a backend fits each node, and which build the node would get."""
    return await parts.gallery.desk.suitability(backend, await parts.nodes.list())


@router.get("/job/{job_id}", response_model_exclude_none=True, responses=responses(400))
async def get_job(job_id: Annotated[str, Path(description="The jobID of an install.")], parts: PartsOf) -> JobStatus:
    """LocalAI's job status: `queued` for an id that nobody knows."""
    operation = await parts.operations.find(job_id)
    return job_status(operation) if operation else batch_job_status(await parts.batches.find(job_id))

"""LocalAI's backend API: what is installed, what is available, and what can be upgraded."""

from fastapi import APIRouter, Depends

from nodesmith.api.auth import Operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.localai.catalogue import check_for_upgrades, map_upgrades
from nodesmith.api.problems import responses
from nodesmith.contracts.http.galleries import UpgradeInfo
from nodesmith.contracts.http.localai import AvailableBackend, GalleryReference, InstalledBackend, KnownBackend

router = APIRouter(prefix="/backends", tags=["LocalAI"], dependencies=[Depends(viewer)])


@router.get("", response_model_exclude_none=True, responses=responses())
async def list_installed(deps: Deps) -> list[InstalledBackend]:
    """Every installed backend, in the version that most nodes have, and its nodes."""
    return await deps.gallery.localai.installed()


@router.get("/available", response_model_exclude_none=True, responses=responses())
async def list_available(deps: Deps) -> list[AvailableBackend]:
    """What the galleries offer for the hardware of the healthy nodes. For everything: `GET /api/backends`."""
    return await deps.gallery.localai.available(await deps.nodes.list())


@router.get("/known", response_model_exclude_none=True, responses=responses())
async def list_known(deps: Deps) -> list[KnownBackend]:
    """The backends by the names that users choose from."""
    return await deps.gallery.localai.known()


@router.get("/galleries", response_model_exclude_none=True, responses=responses())
async def list_gallery_references(deps: Deps) -> list[GalleryReference]:
    """The galleries with their addresses."""
    return await deps.gallery.localai.references()


@router.get("/upgrades", responses=responses())
async def list_backend_upgrades(deps: Deps) -> dict[str, UpgradeInfo]:
    """The same as `GET /api/backends/upgrades`."""
    return await map_upgrades(deps)


@router.post("/upgrades/check", responses=responses())
async def check_backend_upgrades(deps: Deps, actor: Operator) -> dict[str, UpgradeInfo]:
    """The same as `POST /api/backends/upgrades/check`: returns the result of the new check."""
    return await check_for_upgrades(deps, actor)

"""LocalAI's API flavour of the backends: what nodes have, what there is, and what can be upgraded."""

from fastapi import APIRouter, Depends

from api.auth import Operator, viewer
from api.parts import PartsOf
from api.problems import responses
from api.routers.backends import check_upgrades, list_upgrades
from contracts.galleries import UpgradeInfo
from contracts.localai_http import AvailableBackend, GalleryReference, InstalledBackend, KnownBackend

router = APIRouter(prefix="/backends", tags=["LocalAI"], dependencies=[Depends(viewer)])


@router.get("", response_model_exclude_none=True, responses=responses())
async def list_installed(parts: PartsOf) -> list[InstalledBackend]:
    """Every backend that a node has, as most nodes have it, and where."""
    return await parts.gallery.localai.installed()


@router.get("/available", response_model_exclude_none=True, responses=responses())
async def list_available(parts: PartsOf) -> list[AvailableBackend]:
    """What the galleries have for the hardware of the healthy nodes. Everything: `GET /api/backends`."""
    return await parts.gallery.localai.available(await parts.nodes.list())


@router.get("/known", response_model_exclude_none=True, responses=responses())
async def list_known(parts: PartsOf) -> list[KnownBackend]:
    """The backends by the names that people choose from."""
    return await parts.gallery.localai.known()


@router.get("/galleries", response_model_exclude_none=True, responses=responses())
async def list_gallery_references(parts: PartsOf) -> list[GalleryReference]:
    return await parts.gallery.localai.references()


@router.get("/upgrades", responses=responses())
async def list_backend_upgrades(parts: PartsOf) -> dict[str, UpgradeInfo]:
    """The same as `GET /api/backends/upgrades`."""
    return await list_upgrades(parts)


@router.post("/upgrades/check", responses=responses())
async def check_backend_upgrades(parts: PartsOf, actor: Operator) -> dict[str, UpgradeInfo]:
    """The same as `POST /api/backends/upgrades/check`: answers what was found, not what was known before."""
    return await check_upgrades(parts, actor)

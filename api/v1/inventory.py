"""What is installed over the whole fleet."""

from fastapi import APIRouter, Depends

from nodesmith.api.auth import viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.v1.nodes import Backend, SelectorText
from nodesmith.api.views.shapes import views_of
from nodesmith.contracts.http.inventory import BackendSpread
from nodesmith.contracts.http.shared import Page
from nodesmith.domain.identity import family_of
from nodesmith.domain.selector import parse

router = APIRouter(prefix="/api/v1/inventory", tags=["inventory"], dependencies=[Depends(viewer)])


@router.get("", responses=responses(400))
async def get_inventory(deps: Deps, backend: Backend = "", selector: SelectorText = "") -> Page[BackendSpread]:
    """Each backend of the fleet: which builds are installed, and which nodes differ from the majority."""
    found = await deps.inventory.spread(family_of(backend) if backend else "", parse(selector))
    return Page(items=views_of(BackendSpread, found))

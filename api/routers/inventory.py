"""Installed backends: read from the node, from the stored copy, and over the whole fleet."""

from fastapi import APIRouter, Depends

from nodesmith.api.auth import operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.routers.node_list import Backend, SelectorText
from nodesmith.contracts.http.inventory import BackendSpread, NodeInventory
from nodesmith.contracts.nats.messages import Installed
from nodesmith.domain.identity import family_of
from nodesmith.domain.selector import parse

router = APIRouter(prefix="/api", tags=["inventory"], dependencies=[Depends(viewer)])


@router.get("/nodes/{node}/backends", responses=responses(400, 404, 504))
async def list_backends(node: NodeName, deps: Deps) -> list[Installed]:
    """What is on the node's disk, read from the node itself."""
    return await deps.inventory.refresh(await known_node(deps, node))


@router.get("/nodes/{node}/inventory", responses=responses(400, 404))
async def get_inventory(node: NodeName, deps: Deps) -> NodeInventory:
    """What was on the node's disk at the last refresh; also for a node that is away."""
    return await deps.inventory.view(await known_node(deps, node))


@router.post("/nodes/{node}/inventory/refresh", dependencies=[Depends(operator)], responses=responses(400, 404, 504))
async def refresh_inventory(node: NodeName, deps: Deps) -> NodeInventory:
    """Read the node's disk now."""
    known = await known_node(deps, node)
    await deps.inventory.refresh(known)
    return await deps.inventory.view(known)


@router.get("/inventory", responses=responses(400))
async def get_spread(deps: Deps, backend: Backend = "", selector: SelectorText = "") -> list[BackendSpread]:
    """Each backend of the fleet: which builds are installed, and which nodes differ from the majority."""
    return await deps.inventory.spread(family_of(backend) if backend else "", parse(selector))

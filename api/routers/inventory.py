"""What nodes have installed: asked of the node, from the copy, and over the whole fleet."""

from fastapi import APIRouter, Depends

from api.auth import operator, viewer
from api.known import Node, known_node
from api.parts import PartsOf
from api.problems import responses
from api.routers.node_list import Backend, SelectorText
from contracts.inventory import BackendSpread, NodeInventory
from contracts.messages import Installed
from domain.identity import family_of
from domain.selector import parse

router = APIRouter(prefix="/api", tags=["inventory"], dependencies=[Depends(viewer)])


@router.get("/nodes/{node}/backends", responses=responses(400, 404, 504))
async def list_backends(node: Node, parts: PartsOf) -> list[Installed]:
    """What is on the node's disk, asked of the node itself."""
    return await parts.inventory.refresh(await known_node(parts, node))


@router.get("/nodes/{node}/inventory", responses=responses(400, 404))
async def get_inventory(node: Node, parts: PartsOf) -> NodeInventory:
    """What was on the node's disk when it was last asked; also for a node that is away."""
    return await parts.inventory.view(await known_node(parts, node))


@router.post("/nodes/{node}/inventory/refresh", dependencies=[Depends(operator)], responses=responses(400, 404, 504))
async def refresh_inventory(node: Node, parts: PartsOf) -> NodeInventory:
    """Ask the node now."""
    known = await known_node(parts, node)
    await parts.inventory.refresh(known)
    return await parts.inventory.view(known)


@router.get("/inventory", responses=responses(400))
async def get_spread(parts: PartsOf, backend: Backend = "", selector: SelectorText = "") -> list[BackendSpread]:
    """Each backend of the fleet: which builds of it are out there, and which nodes differ from most."""
    return await parts.inventory.spread(family_of(backend) if backend else "", parse(selector))

"""Labels of a node, and the admin's overrides of what the node reports."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path

from nodesmith.api.auth import admin, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.views.nodes import node_view
from nodesmith.contracts.http.inventory import MaxReplicas, VramBudget
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.labels import complaint, complaint_about_key

router = APIRouter(prefix="/api/v1/nodes/{node}", tags=["nodes"], dependencies=[Depends(viewer)])

Labels = Annotated[dict[str, str] | None, Body(examples=[{"zone": "a", "tier": "gold"}])]
Key = Annotated[str, Path(description="Key of the label.", examples=["zone"])]

_REFUSALS = responses(400, 404)


@router.get("/labels", responses=_REFUSALS)
async def get_node_labels(node: NodeName, deps: Deps) -> dict[str, str]:
    """All effective labels: the admin's, the node's own, and the automatic ones."""
    return await deps.labels.of_node((await known_node(deps, node)).id)


@router.put("/labels", dependencies=[Depends(admin)], responses=_REFUSALS)
async def replace_node_labels(node: NodeName, deps: Deps, labels: Labels = None) -> dict[str, str]:
    """Replace the admin's labels. The node's own and the automatic ones stay."""
    return await deps.labels.replace((await known_node(deps, node)).id, checked(labels))


@router.patch("/labels", dependencies=[Depends(admin)], responses=_REFUSALS)
async def update_node_labels(node: NodeName, deps: Deps, labels: Labels = None) -> dict[str, str]:
    """Add or change some of the admin's labels."""
    return await deps.labels.merge((await known_node(deps, node)).id, checked(labels))


@router.delete("/labels/{key:path}", dependencies=[Depends(admin)], responses=_REFUSALS)
async def delete_node_label(node: NodeName, key: Key, deps: Deps) -> dict[str, str]:
    """Remove one of the admin's labels; a label of the node with the same key becomes effective again."""
    known = await known_node(deps, node)
    await deps.labels.remove(known.id, checked_key(key))
    return await deps.labels.of_node(known.id)


@router.put("/max-replicas", dependencies=[Depends(admin)], responses=_REFUSALS)
async def set_node_max_replicas(node: NodeName, wanted: MaxReplicas, deps: Deps) -> NodeView:
    """Override the node's number of replicas of one model, until the override is removed."""
    await deps.overrides.max_replicas((await known_node(deps, node)).id, wanted.value)
    return node_view(await known_node(deps, node))


@router.delete("/max-replicas", dependencies=[Depends(admin)], responses=_REFUSALS)
async def reset_node_max_replicas(node: NodeName, deps: Deps) -> NodeView:
    """The node's own value is effective again."""
    await deps.overrides.max_replicas((await known_node(deps, node)).id, None)
    return node_view(await known_node(deps, node))


@router.put("/vram-budget", dependencies=[Depends(admin)], responses=_REFUSALS)
async def set_node_vram_budget(node: NodeName, wanted: VramBudget, deps: Deps) -> NodeView:
    """Override the node's memory budget, until the override is removed; an empty value means no budget."""
    await deps.overrides.vram_budget((await known_node(deps, node)).id, str(wanted.value))
    return node_view(await known_node(deps, node))


@router.delete("/vram-budget", dependencies=[Depends(admin)], responses=_REFUSALS)
async def reset_node_vram_budget(node: NodeName, deps: Deps) -> NodeView:
    """The node's own value is effective again."""
    await deps.overrides.vram_budget((await known_node(deps, node)).id, None)
    return node_view(await known_node(deps, node))


def checked(labels: dict[str, str] | None) -> dict[str, str]:
    if wrong := complaint(labels or {}):
        raise InvalidRequest(f"labels: {wrong}.", field="labels")
    return labels or {}


def checked_key(key: str) -> str:
    if wrong := complaint_about_key(key):
        raise InvalidRequest(f"key: {wrong}.", field="key")
    return key

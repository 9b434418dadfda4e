"""Labels of a node, and what an admin decides over its own word. Paths and fields are LocalAI's."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path

from api.auth import admin, viewer
from api.known import Node, known_node
from api.parts import PartsOf
from api.problems import responses
from contracts.inventory import HandedBack, MaxReplicas, MaxReplicasSet, VramBudget, VramBudgetSet
from domain.errors import InvalidRequest
from domain.labels import complaint, complaint_about_key

router = APIRouter(prefix="/api/nodes/{node}", tags=["nodes: labels"], dependencies=[Depends(viewer)])

Labels = Annotated[dict[str, str] | None, Body(examples=[{"zone": "a", "tier": "gold"}])]
Key = Annotated[str, Path(description="Key of the label.", examples=["zone"])]

_REFUSALS = responses(400, 404)


@router.get("/labels", responses=_REFUSALS)
async def get_labels(node: Node, parts: PartsOf) -> dict[str, str]:
    """Every label that counts: the admin's, the node's own, and those that follow from what the node is."""
    return await parts.labels.of_node((await known_node(parts, node)).id)


@router.put("/labels", dependencies=[Depends(admin)], responses=_REFUSALS)
async def replace_labels(node: Node, parts: PartsOf, labels: Labels = None) -> dict[str, str]:
    """Replace the admin's labels. The node's own and the automatic ones stay."""
    known = await known_node(parts, node)
    return await parts.labels.replace(known.id, _checked(labels))


@router.patch("/labels", dependencies=[Depends(admin)], responses=_REFUSALS)
async def merge_labels(node: Node, parts: PartsOf, labels: Labels = None) -> dict[str, str]:
    """Add or change some labels."""
    known = await known_node(parts, node)
    return await parts.labels.merge(known.id, _checked(labels))


@router.delete("/labels/{key:path}", status_code=204, dependencies=[Depends(admin)], responses=_REFUSALS)
async def remove_label(node: Node, key: Key, parts: PartsOf) -> None:
    """Remove one of the admin's labels; where it overruled the node's own, that one counts again."""
    known = await known_node(parts, node)
    if wrong := complaint_about_key(key):
        raise InvalidRequest(f"key: {wrong}.", field="key")
    await parts.labels.remove(known.id, key)


@router.put("/max-replicas-per-model", dependencies=[Depends(admin)], responses=_REFUSALS)
async def set_max_replicas(node: Node, wanted: MaxReplicas, parts: PartsOf) -> MaxReplicasSet:
    """Overrule the node, until it is handed back."""
    await parts.overrides.max_replicas((await known_node(parts, node)).id, wanted.value)
    return MaxReplicasSet(max_replicas_per_model=wanted.value)


@router.delete("/max-replicas-per-model", dependencies=[Depends(admin)], responses=_REFUSALS)
async def hand_back_max_replicas(node: Node, parts: PartsOf) -> HandedBack:
    await parts.overrides.max_replicas((await known_node(parts, node)).id, None)
    return HandedBack()


@router.put("/vram-budget", dependencies=[Depends(admin)], responses=_REFUSALS)
async def set_vram_budget(node: Node, wanted: VramBudget, parts: PartsOf) -> VramBudgetSet:
    """Overrule the node, until it is handed back; an empty value is no budget at all."""
    budget = str(wanted.value)
    await parts.overrides.vram_budget((await known_node(parts, node)).id, budget)
    return VramBudgetSet(vram_budget=budget)


@router.delete("/vram-budget", dependencies=[Depends(admin)], responses=_REFUSALS)
async def hand_back_vram_budget(node: Node, parts: PartsOf) -> HandedBack:
    await parts.overrides.vram_budget((await known_node(parts, node)).id, None)
    return HandedBack()


def _checked(labels: dict[str, str] | None) -> dict[str, str]:
    if wrong := complaint(labels or {}):
        raise InvalidRequest(f"labels: {wrong}.", field="labels")
    return labels or {}

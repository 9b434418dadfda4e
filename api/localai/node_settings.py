"""LocalAI's labels of a node, and the admin's overrides of what the node reports."""

from fastapi import APIRouter, Depends

from nodesmith.api.auth import admin, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.v1.node_labels import Key, Labels, checked, checked_key
from nodesmith.contracts.http.inventory import MaxReplicas, MaxReplicasSet, OverrideRemoved, VramBudget, VramBudgetSet

router = APIRouter(prefix="/api/nodes/{node}", tags=["LocalAI"], dependencies=[Depends(viewer)])

_REFUSALS = responses(400, 404)


@router.get("/labels", responses=_REFUSALS)
async def get_labels(node: NodeName, deps: Deps) -> dict[str, str]:
    """All effective labels: the admin's, the node's own, and the automatic ones."""
    return await deps.labels.of_node((await known_node(deps, node)).id)


@router.put("/labels", dependencies=[Depends(admin)], responses=_REFUSALS)
async def replace_labels(node: NodeName, deps: Deps, labels: Labels = None) -> dict[str, str]:
    """Replace the admin's labels. The node's own and the automatic ones stay."""
    known = await known_node(deps, node)
    return await deps.labels.replace(known.id, checked(labels))


@router.patch("/labels", dependencies=[Depends(admin)], responses=_REFUSALS)
async def merge_labels(node: NodeName, deps: Deps, labels: Labels = None) -> dict[str, str]:
    """Add or change some labels."""
    known = await known_node(deps, node)
    return await deps.labels.merge(known.id, checked(labels))


@router.delete("/labels/{key:path}", status_code=204, dependencies=[Depends(admin)], responses=_REFUSALS)
async def remove_label(node: NodeName, key: Key, deps: Deps) -> None:
    """Remove one of the admin's labels; a label of the node with the same key becomes effective again."""
    known = await known_node(deps, node)
    await deps.labels.remove(known.id, checked_key(key))


@router.put("/max-replicas-per-model", dependencies=[Depends(admin)], responses=_REFUSALS)
async def override_max_replicas(node: NodeName, wanted: MaxReplicas, deps: Deps) -> MaxReplicasSet:
    """Override the node's value until the override is removed."""
    await deps.overrides.max_replicas((await known_node(deps, node)).id, wanted.value)
    return MaxReplicasSet(max_replicas_per_model=wanted.value)


@router.delete("/max-replicas-per-model", dependencies=[Depends(admin)], responses=_REFUSALS)
async def hand_back_max_replicas(node: NodeName, deps: Deps) -> OverrideRemoved:
    """The node's own value is effective again."""
    await deps.overrides.max_replicas((await known_node(deps, node)).id, None)
    return OverrideRemoved()


@router.put("/vram-budget", dependencies=[Depends(admin)], responses=_REFUSALS)
async def override_vram_budget(node: NodeName, wanted: VramBudget, deps: Deps) -> VramBudgetSet:
    """Override the node's value until the override is removed; an empty value means no budget."""
    budget = str(wanted.value)
    await deps.overrides.vram_budget((await known_node(deps, node)).id, budget)
    return VramBudgetSet(vram_budget=budget)


@router.delete("/vram-budget", dependencies=[Depends(admin)], responses=_REFUSALS)
async def hand_back_vram_budget(node: NodeName, deps: Deps) -> OverrideRemoved:
    """The node's own value is effective again."""
    await deps.overrides.vram_budget((await known_node(deps, node)).id, None)
    return OverrideRemoved()

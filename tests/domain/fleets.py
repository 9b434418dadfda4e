"""Helpers that build snapshots of the scheduler."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from nodesmith.domain.deployment import Deployment, LoadSpec
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.placement import PlacementNode
from nodesmith.domain.replica import Replica, ReplicaState
from nodesmith.domain.scaling import plan_tick
from nodesmith.domain.tick import Fleet, Plan

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
GIB = 2**30
_NUMBERS = count(1)


def a_node(name: str = "", *, gib: int = 8, **facts: Any) -> PlacementNode:
    named = name or f"n{next(_NUMBERS)}"
    fixed = {"id": f"id-{named}", "name": named, "status": NodeStatus.HEALTHY, "slots": 1, "resources_at": NOW}
    memory = {"budget": gib * GIB, "available": gib * GIB}
    return PlacementNode(**{**fixed, **memory, **facts})


def a_model(
    name: str = "llama", *, revision: int = 1, gib: int = 1, spec: dict[str, Any] | None = None, **facts: Any
) -> Deployment:
    load = {"model": name, "revision": revision, "backend": "echo-lm", "memory": gib * GIB, **(spec or {})}
    rule = {"min_replicas": 1, "max_replicas": 1}
    return Deployment(**{"name": name, "spec": LoadSpec(**load), "created_at": NOW, "updated_at": NOW, **rule, **facts})


def a_replica(
    node: PlacementNode, model: Deployment, state: ReplicaState = ReplicaState.LOADED, **facts: Any
) -> Replica:
    """Put a replica on the node."""
    fixed = {
        "id": f"r{next(_NUMBERS)}",
        "node_id": node.id,
        "model": model.name,
        "index": node.free_index(model.name) or 0,
        "revision": model.revision,
        "state": state,
        "op_id": f"op{next(_NUMBERS)}",
        "reserved": model.spec.memory,
        "created_at": LONG_AGO,
        "changed_at": LONG_AGO,
    }
    if state not in (ReplicaState.PLACING, ReplicaState.LOADING):
        fixed |= {"loaded_at": LONG_AGO, "last_used": LONG_AGO, "address": "somewhere"}
    found = Replica(**{**fixed, **facts})
    node.add(found)
    return found


def planned(nodes: Sequence[PlacementNode], *models: Deployment, **facts: Any) -> Plan:
    """The plan of one tick; replicas of planned placements are taken off the nodes again."""
    fresh: dict[str, Any] = {"held": 0, "unseen": 0, "in_flight": 0}
    copies = [replace(node, replicas=list(node.replicas), _indices={}, **fresh) for node in nodes]
    return plan_tick(Fleet(**{"now": NOW, "nodes": copies, "deployments": models, **facts}))


def places(plan: Plan) -> list[tuple[str, str]]:
    return [(each.model, each.choice.node_name) for each in plan.place]

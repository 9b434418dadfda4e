"""Helpers that create nodes in the registry."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import insert

from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.node import Node, Protocol
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.tables.core import NodeRow
from nodesmith.store.tables.inventory import NodeLabelRow
from tests.store.clock import NOON


def a_node(**facts: Any) -> RegisterRequest:
    named = {"name": f"node-{uuid.uuid4().hex[:8]}", "protocol": Protocol.NODESMITH, "machine_id": "m1"}
    return RegisterRequest(**{**named, **facts})


async def registered(nodes: Nodes, *, approve: bool = True, **facts: Any) -> Node:
    return await nodes.upsert(a_node(**facts), now=NOON, credential_hash="h1", approve=approve)


async def healthy(nodes: Nodes, **facts: Any) -> Node:
    node = await registered(nodes, **facts)
    await nodes.heartbeats([Heartbeat(node_id=node.id)], NOON)
    await nodes.touch_listening(NOON)
    found = await nodes.find(node.id)
    assert found is not None
    return found


async def fill(database: Database, fleet: Sequence[Mapping[str, str]], *, prefix: str = "bulk") -> list[str]:
    """One node for each set of labels, in two statements."""
    fixed = {"node_type": "backend", "protocol": 2, "max_replicas_per_model": 1, "resources": {}}
    reported = dict.fromkeys(("address", "http_address", "vram_budget", "machine_id", "boot_id", "agent_version"), "")
    times = {"approved_at": NOON, "last_heartbeat": NOON, "created_at": NOON, "updated_at": NOON}
    ids = [f"{prefix}-{number:05}" for number in range(len(fleet))]
    rows = [{**fixed, **reported, **times, "id": node_id, "name": node_id} for node_id in ids]
    labels = [
        {"node_id": node_id, "key": key, "by_node": value}
        for node_id, said in zip(ids, fleet, strict=True)
        for key, value in said.items()
    ]
    async with database.session() as session:
        await session.execute(insert(NodeRow), rows)
        if labels:
            await session.execute(insert(NodeLabelRow), labels)
    return ids

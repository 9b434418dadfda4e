"""A heartbeat changes the facts of a node that was approved and has not left, and of no other."""

from datetime import timedelta
from typing import Any

import pytest

from nodesmith.contracts.nats.presence import Heartbeat, Resources
from nodesmith.store.database import Database
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from tests.store.clock import NOON
from tests.store.fleet import registered

GIB = 2**30
LATER = NOON + timedelta(seconds=5)
FACTS: dict[str, Any] = {"total_vram": 24 * GIB, "gpu_vendor": "nvidia", "boot_id": "b1"}
OTHER = Resources(total_vram=80 * GIB, gpu_vendor="amd", available_disk=7)


async def facts_after_a_heartbeat(nodes: Nodes, node_id: str, *, over_nats: bool) -> tuple[object, ...]:
    await nodes.heartbeats([Heartbeat(node_id=node_id, resources=OTHER)], LATER, over_nats=over_nats)
    view = await nodes.find(node_id)
    assert view is not None
    assert view.last_heartbeat == LATER
    return view.total_vram, view.gpu_vendor, view.available_disk


@pytest.mark.parametrize("over_nats", [False, True])
async def test_heartbeat_of_a_pending_node_moves_its_time_and_no_fact(nodes: Nodes, over_nats: bool) -> None:
    """R23c: before the approval an admin sees the facts of the registration."""
    pending = await registered(nodes, approve=False, **FACTS)
    assert await facts_after_a_heartbeat(nodes, pending.id, over_nats=over_nats) == (24 * GIB, "nvidia", None)
    assert await nodes.approve(pending.id, now=LATER)
    assert await facts_after_a_heartbeat(nodes, pending.id, over_nats=over_nats) == (80 * GIB, "amd", 7)


async def test_heartbeat_of_a_node_that_left_moves_its_time_and_no_fact(nodes: Nodes, database: Database) -> None:
    """R23c: it is offline until it registers again."""
    node = await registered(nodes, **FACTS)
    await NodeLifecycle(database).left(node.id, now=NOON)
    assert await facts_after_a_heartbeat(nodes, node.id, over_nats=True) == (24 * GIB, "nvidia", None)

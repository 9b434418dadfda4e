"""The node list by status contains exactly the nodes of that status."""

from datetime import timedelta

import pytest

from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.node import NodeStatus
from nodesmith.store.database import Database
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.node_list import NodeList, NodeQuery
from nodesmith.store.nodes.nodes import Nodes
from tests.store.clock import NOON, SetClock
from tests.store.fleet import healthy, registered

LISTED = {
    NodeStatus.PENDING: ["pending"],
    NodeStatus.DRAINING: ["drained", "leaving"],
    NodeStatus.OFFLINE: ["left", "never-heard", "silent"],
    NodeStatus.UNHEALTHY: ["unreachable"],
    NodeStatus.HEALTHY: ["well"],
}


@pytest.fixture(scope="module")
async def listing(database: Database) -> NodeList:
    nodes, life = Nodes(database, clock=SetClock()), NodeLifecycle(database)
    for seconds in range(70, -10, -10):
        await nodes.touch_listening(NOON - timedelta(seconds=seconds))
    await registered(nodes, name="pending", approve=False)
    await registered(nodes, name="never-heard")
    drained, leaving, left, unreachable = [
        await healthy(nodes, name=name) for name in ("drained", "leaving", "left", "unreachable")
    ]
    await healthy(nodes, name="well")
    silent = await registered(nodes, name="silent")
    await nodes.heartbeats([Heartbeat(node_id=silent.id)], NOON - timedelta(seconds=61))
    await life.drain(drained.id, now=NOON)
    await life.leaving(leaving.id, now=NOON)
    await life.left(left.id, now=NOON)
    await nodes.mark_unreachable(unreachable.id, NOON)
    return NodeList(database, clock=SetClock())


@pytest.mark.parametrize("status", LISTED)
async def test_list_by_status_has_the_nodes_of_that_status_and_no_others(listing: NodeList, status: NodeStatus) -> None:
    """Neither a drained node nor one that is offline, unhealthy or pending counts as healthy."""
    page = await listing.page(NodeQuery(statuses=(status,)))
    assert ([node.name for node in page.nodes], page.total) == (LISTED[status], len(LISTED[status]))
    assert {node.status for node in page.nodes} == {status}

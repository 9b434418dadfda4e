"""Refreshing inventories: which nodes are asked, which are backed off, and the effect of a failed request."""

from collections.abc import AsyncIterator

import pytest

from nodesmith.contracts.nats.messages import BackendList, Installed
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.errors import NoAnswer, NodeAway
from nodesmith.domain.node import Node
from nodesmith.domain.operation import State
from nodesmith.services.nodes.inventory import Inventory
from nodesmith.services.nodes.reachability import ReachabilityTracker
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from nodesmith.workers.inventory_refresh import InventoryRefresher
from tests.databases import migrated_template, opened
from tests.fakes.node_link import SimulatedLink
from tests.servers import PostgresForTests
from tests.services.conftest import Join, now
from tests.store.transitions import a_request, transition


class ListingLink(SimulatedLink):
    """Answers `backend.list` for the nodes it knows; raises `NodeAway` for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.disks: dict[str, BackendList] = {}
        self.asked: list[str] = []

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        self.asked.append(node_id)
        if node_id not in self.disks:
            raise NodeAway
        return self.disks[node_id]


@pytest.fixture
async def database(postgres_server: PostgresForTests) -> AsyncIterator[Database]:
    """A separate database, because a refresh covers every node."""
    url = await postgres_server.create_database(template=await migrated_template(postgres_server))
    async with opened(url) as database:
        yield database


@pytest.fixture
def link() -> ListingLink:
    return ListingLink()


@pytest.fixture
async def inventory(database: Database, nodes: Nodes, link: ListingLink) -> AsyncIterator[Inventory]:
    tracker = ReachabilityTracker(link, nodes, now)
    yield Inventory(InventoryTable(database), tracker, now)
    await tracker.close()


async def heard(nodes: Nodes, node: Node, boot_id: str) -> Node:
    await nodes.heartbeats([Heartbeat(node_id=node.id, boot_id=boot_id)], now())
    found = await nodes.find(node.id)
    assert found is not None
    return found


def disk(*versions: str) -> BackendList:
    return BackendList(backends=[Installed(name=f"echo-{version}", version=version) for version in versions])


async def test_inventory_is_refreshed_on_connect_and_after_an_operation_only(
    join: Join, nodes: Nodes, operations: OperationTable, inventory: Inventory, link: ListingLink
) -> None:
    """Promise 5: the inventory matches the node's disk."""
    node = await heard(nodes, await join(), "boot-1")
    link.disks[node.id] = disk("1")
    assert (await inventory.refresh_stale(), await inventory.refresh_stale()) == (1, 0)
    assert [each.version for each in await inventory.of_node(node.id)] == ["1"]
    link.disks[node.id] = disk("1", "2")
    ended = transition(a_request(node_id=node.id), State.SUCCEEDED)
    await operations.record(ended.model_copy(update={"ended_at": now()}))
    assert (await inventory.refresh_stale(), await inventory.refresh_stale()) == (1, 0)
    assert [(name, each.version) for _, name, each in await inventory.having("echo-2")] == [(node.name, "2")]
    assert link.asked == [node.id, node.id]


async def test_node_without_answer_is_backed_off_and_keeps_its_copy(
    join: Join, nodes: Nodes, inventory: Inventory, link: ListingLink
) -> None:
    node = await heard(nodes, await join(), "boot-1")
    link.disks[node.id] = disk("1")
    await inventory.refresh(node)
    del link.disks[node.id]
    with pytest.raises(NodeAway):
        await inventory.refresh(node)
    unhealthy = await nodes.find(node.id)
    assert unhealthy is not None
    assert unhealthy.unreachable_since
    link.asked.clear()
    assert (await inventory.refresh_stale(), await inventory.refresh_stale()) == (0, 0)
    assert link.asked == [node.id]
    assert [each.version for each in await inventory.of_node(node.id)] == ["1"]


async def test_a_node_that_cannot_list_keeps_its_copy(
    join: Join, nodes: Nodes, inventory: Inventory, link: ListingLink
) -> None:
    node = await heard(nodes, await join(), "boot-1")
    link.disks[node.id] = disk("1")
    await inventory.refresh(node)
    link.disks[node.id] = BackendList(error="disk broken")
    with pytest.raises(NoAnswer, match="disk broken"):
        await inventory.refresh(node)
    assert [each.version for each in await inventory.of_node(node.id)] == ["1"]


async def test_a_node_without_backends_is_not_asked(join: Join, inventory: Inventory, link: ListingLink) -> None:
    assert await inventory.refresh(await join(node_type="agent")) == []
    assert not link.asked


async def test_one_refresh_asks_the_whole_fleet_despite_absent_nodes(
    join: Join, nodes: Nodes, inventory: Inventory, link: ListingLink
) -> None:
    """S56."""
    fleet = [await heard(nodes, await join(), "boot") for _ in range(5)]
    link.disks = {node.id: disk("1") for node in fleet[:3]}
    assert await InventoryRefresher(inventory)._refresh_stale() == 3
    assert sorted(link.asked) == sorted(node.id for node in fleet)

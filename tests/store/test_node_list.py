"""The list of nodes: filters, order, pages."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.selector import parse
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.node_list import NodeList, NodeQuery
from nodesmith.store.nodes.nodes import Nodes
from tests.databases import opened
from tests.servers import PostgresForTests
from tests.store.clock import NOON, SetClock
from tests.store.fleet import healthy, registered


@pytest.fixture
async def database(postgres_server: PostgresForTests, template: str) -> AsyncIterator[Database]:
    """A separate database, because these tests count nodes."""
    async with opened(await postgres_server.create_database(template=template)) as database:
        yield database


@pytest.fixture
def listing(database: Database, clock: SetClock) -> NodeList:
    return NodeList(database, clock=clock)


async def names(listing: NodeList, query: NodeQuery) -> list[str]:
    return [node.name for node in (await listing.page(query)).nodes]


async def test_filters_narrow_the_list_down(nodes: Nodes, listing: NodeList, database: Database) -> None:
    """Status, selector, backend and text, alone and combined; the total matches the list."""
    first = await healthy(nodes, name="alpha", labels={"zone": "a"}, address="10.0.0.7:1")
    await healthy(nodes, name="beta", labels={"zone": "b"})
    await registered(nodes, name="gamma_100%", labels={"zone": "a"}, approve=False)
    await InventoryTable(database).replace(first.id, [Installed(name="Echo")], asked_at=NOON, boot_id="")
    cases = {
        NodeQuery(): ["alpha", "beta", "gamma_100%"],
        NodeQuery(statuses=(NodeStatus.PENDING,)): ["gamma_100%"],
        NodeQuery(statuses=(NodeStatus.PENDING, NodeStatus.HEALTHY), selector=parse("zone=a")): ["alpha", "gamma_100%"],
        NodeQuery(selector=parse("zone!=a")): ["beta"],
        NodeQuery(family="echo"): ["alpha"],
        NodeQuery(family="other"): [],
        NodeQuery(text="ALPH"): ["alpha"],
        NodeQuery(text="10.0.0.7"): ["alpha"],
        NodeQuery(text="0%"): ["gamma_100%"],
        NodeQuery(text="_1"): ["gamma_100%"],
        NodeQuery(text=first.id[:13], statuses=(NodeStatus.PENDING,)): [],
    }
    for query, expected in cases.items():
        page = await listing.page(query)
        assert ([node.name for node in page.nodes], page.total) == (expected, len(expected)), query


@pytest.mark.parametrize("sort", ["name", "-name", "status", "-status", "last_heartbeat", "-created_at"])
async def test_pages_hold_every_node_once_in_the_order_of_the_list(
    nodes: Nodes, listing: NodeList, clock: SetClock, sort: str
) -> None:
    """R24: also with equal sort keys, and for nodes without a heartbeat."""
    for number in range(7):
        node = await registered(nodes, name=f"n{number * 5 % 7}", approve=number % 2 == 0)
        if number % 3:
            await nodes.heartbeats([Heartbeat(node_id=node.id)], NOON - timedelta(seconds=number))
    whole = await names(listing, NodeQuery(sort=sort))
    paged: list[str] = []
    query = NodeQuery(sort=sort, limit=2)
    while True:
        page = await listing.page(query)
        assert (len(page.nodes) <= 2, page.total) == (True, 7)
        paged += [node.name for node in page.nodes]
        if not page.next_cursor:
            break
        query = NodeQuery(sort=sort, limit=2, cursor=page.next_cursor)
    assert paged == whole
    assert len(paged) == 7
    if sort.endswith("name"):
        assert whole == sorted(whole, reverse=sort == "-name")


async def test_pages_stay_right_while_nodes_come(nodes: Nodes, listing: NodeList) -> None:
    """A node that sorts before the current page does not shift it."""
    for name in ("b", "c", "d"):
        await registered(nodes, name=name)
    first = await listing.page(NodeQuery(limit=2))
    await registered(nodes, name="a")
    assert await names(listing, NodeQuery(limit=2, cursor=first.next_cursor)) == ["d"]


@pytest.mark.parametrize("cursor", ["x", "====", "bnVsbA", "W10", "WyJuYW1lIl0", "WyJzdGF0dXMiLCJhIiwiYiJd", "é"])
async def test_invalid_cursor_of_the_node_list_is_refused(listing: NodeList, cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await listing.page(NodeQuery(limit=1, cursor=cursor))
    assert refused.value.facts["field"] == "cursor"


async def test_an_order_that_does_not_exist_is_refused(listing: NodeList) -> None:
    with pytest.raises(InvalidRequest, match="name, status, last_heartbeat, created_at"):
        await listing.page(NodeQuery(sort="weight"))

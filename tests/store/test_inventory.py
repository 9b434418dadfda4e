"""Copies of the nodes' lists, and when they are stale."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.operation import State
from nodesmith.domain.selector import parse
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import LONGEST_AGE, InventoryTable
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.tables.core import NodeRow
from tests.databases import opened
from tests.servers import PostgresForTests
from tests.store.clock import NOON, SetClock
from tests.store.fleet import healthy, registered
from tests.store.transitions import a_request, transition

ECHO = Installed(
    name="Echo",
    family="echo",
    version="2",
    digest="sha256:ab",
    uri="/artifacts/echo-2.tar.gz",
    installed_at=datetime(2026, 11, 15, 9, tzinfo=UTC),
    previous_version="1",
    previous_digest="sha256:aa",
)


@pytest.fixture
async def database(postgres_server: PostgresForTests, template: str) -> AsyncIterator[Database]:
    """A separate database, because these tests read the whole fleet."""
    async with opened(await postgres_server.create_database(template=template)) as database:
        yield database


@pytest.fixture
def inventory(database: Database, clock: SetClock) -> InventoryTable:
    return InventoryTable(database, clock=clock)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


async def test_a_list_is_taken_over_whole(nodes: Nodes, inventory: InventoryTable) -> None:
    """Backends that the node no longer lists are deleted; a LocalAI worker's entry gets its family from its name."""
    node = await registered(nodes)
    assert await inventory.copy(node.id) == (None, [])
    bare = Installed(name="localai@Llama-CPP", is_meta=True)
    assert await inventory.replace(node.id, [ECHO, bare], asked_at=NOON, boot_id="b1")
    kept = await inventory.of_node(node.id)
    assert kept == [ECHO, bare.model_copy(update={"family": "llama-cpp"})]
    assert await inventory.having("echo") == [(node.id, node.name, ECHO)]
    newer = ECHO.model_copy(update={"version": "3", "previous_version": "2"})
    assert await inventory.replace(node.id, [newer], asked_at=later(1), boot_id="b1")
    assert await inventory.of_node(node.id) == [newer]
    assert await inventory.replace(node.id, [], asked_at=later(2), boot_id="b1")
    assert await inventory.copy(node.id) == (later(2), [])


async def test_an_answer_to_an_older_question_changes_nothing(
    nodes: Nodes, inventory: InventoryTable, clock: SetClock
) -> None:
    node = await registered(nodes)
    clock.now = later(6)
    await inventory.replace(node.id, [], asked_at=later(5), boot_id="")
    assert not await inventory.replace(node.id, [ECHO], asked_at=NOON, boot_id="")
    assert await inventory.of_node(node.id) == []


async def test_inventory_is_deleted_with_its_node_and_does_not_return(
    nodes: Nodes, inventory: InventoryTable, database: Database
) -> None:
    """H10: by foreign key; a reply that arrives after the removal is dropped."""
    node = await registered(nodes)
    await inventory.replace(node.id, [ECHO], asked_at=NOON, boot_id="")
    async with database.session() as session:
        await session.delete(await session.get_one(NodeRow, node.id))
    assert await inventory.having("echo") == []
    assert not await inventory.replace(node.id, [ECHO], asked_at=later(9), boot_id="")


async def test_copy_is_stale_after_a_boot_an_operation_or_an_hour(
    nodes: Nodes, inventory: InventoryTable, operations: OperationTable, clock: SetClock
) -> None:
    """Derived from facts: an event that was missed is found at the next check."""
    node = await healthy(nodes)

    async def is_stale() -> bool:
        stale = [each.id for each in await inventory.stale(limit=10)] == [node.id]
        known = await inventory.certain("echo", [node.id])
        assert known == ({} if stale else {node.id: "sha256:1"}), "an order may name only a digest that is certain"
        return stale

    async def taken(seconds: float) -> None:
        clock.now = later(seconds)
        current = await nodes.find(node.id)
        assert current is not None
        there = [Installed(name="echo", family="echo", digest="sha256:1")]
        await inventory.replace(node.id, there, asked_at=later(seconds), boot_id=current.boot_id)
        assert not await is_stale()

    assert await is_stale()
    assert await inventory.stale(limit=10, skip=[node.id]) == []
    await taken(0)
    await nodes.heartbeats([Heartbeat(node_id=node.id, boot_id="b2")], NOON)
    assert await is_stale()
    await taken(1)
    ended = transition(a_request(node_id=node.id), State.SUCCEEDED)
    await operations.record(ended.model_copy(update={"ended_at": later(2)}))
    assert await is_stale()
    await taken(3)
    await nodes.mark_unreachable(node.id, later(4))
    assert await is_stale()
    await nodes.mark_reachable({node.id: later(5)})
    clock.now = later(3) + LONGEST_AGE + timedelta(seconds=1)
    await nodes.heartbeats([Heartbeat(node_id=node.id)], clock.now)
    assert await is_stale()


async def test_lists_are_taken_again_after_the_clock_was_set_back(
    nodes: Nodes, inventory: InventoryTable, clock: SetClock
) -> None:
    """Otherwise the copy would seem current until the clock reaches its old time."""
    node = await registered(nodes)
    clock.now = later(600)
    await inventory.replace(node.id, [], asked_at=clock.now, boot_id="")
    assert await inventory.uncertain([node.id]) == set()
    clock.now = NOON
    assert await inventory.uncertain([node.id]) == {node.id}
    assert await inventory.replace(node.id, [ECHO], asked_at=NOON, boot_id="")
    assert await inventory.copy(node.id) == (NOON, [ECHO])
    assert await inventory.uncertain([node.id]) == set()


async def test_only_nodes_that_could_answer_are_asked(nodes: Nodes, inventory: InventoryTable) -> None:
    await registered(nodes, approve=False)
    await registered(nodes)  # no heartbeat yet
    await healthy(nodes, node_type="agent")
    assert await inventory.stale(limit=10) == []


async def test_drift_lists_nodes_that_differ_from_the_majority(nodes: Nodes, inventory: InventoryTable) -> None:
    for number, version in enumerate(["2", "2", "2", "1", "3"]):
        node = await registered(nodes, name=f"n{number}", labels={"rack": "1" if number in (1, 2, 3) else "0"})
        build = ECHO.model_copy(update={"version": version, "digest": f"sha256:{version}"})
        await inventory.replace(node.id, [build, Installed(name="same", version="1")], asked_at=NOON, boot_id="")
    echo, same = await inventory.spread()
    assert [(build.version, build.nodes) for build in echo.builds[:1]] == [("2", 3)]
    assert [(each.node_name, each.version) for each in echo.differing] == [("n3", "1"), ("n4", "3")]
    assert (same.family, same.nodes, same.differing) == ("same", 5, [])
    assert [each.family for each in await inventory.spread(family="same")] == ["same"]
    (odd,) = await inventory.spread(family="echo", selector=parse("rack=1"))
    assert (odd.nodes, [each.node_name for each in odd.differing]) == (3, ["n3"])
    assert await inventory.spread(family="nobody-has-it") == []


async def test_hot_questions_use_an_index(operations: OperationTable, database: Database) -> None:
    """Which nodes have a backend, and whether an operation ended since."""
    await operations.record(transition(a_request(), State.SUCCEEDED))
    async with database.session() as session:
        await session.execute(
            text("""
            INSERT INTO operations SELECT (jsonb_populate_record(one, jsonb_build_object('op_id', number,
                'node_id', number % 20, 'ended_at', now() - number * interval '1 minute'))).*
            FROM operations AS one, generate_series(1, 2000) AS number
        """)
        )
        await session.execute(text("ANALYZE operations"))
        await session.execute(text("SET LOCAL enable_seqscan = off"))
        having = await session.scalars(text("EXPLAIN SELECT 1 FROM installed_backends WHERE family = 'echo'"))
        ended = await session.scalars(
            text("EXPLAIN SELECT 1 FROM operations WHERE node_id = '7' AND ended_at > now() - interval '30 hours'")
        )
        assert "ix_installed_backends_family_node_id" in "\n".join(having)
        assert "ix_operations_node_id_ended_at" in "\n".join(ended)

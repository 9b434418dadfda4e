"""Removing a node deletes its dependent rows, all or nothing; history stays."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import insert, text

from nodesmith.contracts.nats.presence import StopWhy
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.operation import State
from nodesmith.store.database import Database
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.tables.core import Base
from tests.store.clock import NOON
from tests.store.test_nodes import a_node, registered
from tests.store.transitions import a_request, transition

HISTORY = {"operations", "operation_events", "audit", "batch_members"}
_VALUES = {"TEXT": "x", "BIGINT": 1, "BIGINTEGER": 1, "SMALLINT": 1, "DATETIME": NOON, "JSONB": {}, "BOOLEAN": False}


@pytest.fixture
def life(database: Database) -> NodeLifecycle:
    return NodeLifecycle(database)


def tables_below_nodes() -> dict[str, str]:
    """Table -> its column that refers to a node."""
    found = [
        (table.name, column.name)
        for table in Base.metadata.tables.values()
        for column in table.columns
        for key in column.foreign_keys
        if key.column.table.name == "nodes"
    ]
    return dict(found)


async def fill(database: Database, node_id: str) -> None:
    """One row in every table that depends on a node."""
    async with database.session() as session:
        for name, reference in tables_below_nodes().items():
            table = Base.metadata.tables[name]
            written = [column for column in table.columns if column.computed is None and column.identity is None]
            values = {column.name: _VALUES[type(column.type).__name__.upper()] for column in written}
            own = {"state": "loaded", "id": f"of-{node_id}"}
            named = {key: value for key, value in own.items() if key in values}
            await session.execute(insert(table).values({**values, **named, reference: node_id}))


async def count(database: Database, node_id: str) -> int:
    async with database.session() as session:
        queries = [
            text(f"SELECT count(*) FROM {table} WHERE {reference} = :node")
            for table, reference in tables_below_nodes().items()
        ]
        return sum([await session.scalar(query, {"node": node_id}) or 0 for query in queries])


async def test_every_table_below_a_node_goes_with_it_and_history_does_not(database: Database) -> None:
    """R9 (superseded by H10): the database cascades; history tables do not reference a node."""
    async with database.session() as session:
        keys = await session.execute(
            text(
                "SELECT conrelid::regclass::text, confdeltype::text FROM pg_constraint"
                " WHERE contype = 'f' AND confrelid = 'nodes'::regclass"
            )
        )
        rules = {str(table): str(rule) for table, rule in keys}
    assert set(rules) == set(tables_below_nodes())
    assert set(rules.values()) == {"c"}, "on delete cascade"
    assert len(rules) >= 2
    assert not set(rules) & HISTORY


async def test_removal_takes_all_of_it_along_and_keeps_history(
    database: Database, life: NodeLifecycle, nodes: Nodes, operations: OperationTable
) -> None:
    """R9, R22, H10."""
    node_id, other = await registered(nodes, a_node()), await registered(nodes, a_node())
    await fill(database, node_id)
    await fill(database, other)
    of_other = await count(database, other)
    request = a_request(node_id=node_id)
    await operations.record(transition(request, State.SUCCEEDED))
    await life.remove(node_id, now=NOON)
    assert await nodes.find(node_id) is None
    assert (await count(database, node_id), await count(database, other)) == (0, of_other)
    assert await operations.find(request.op_id) is not None
    assert await life.removed_among([node_id, other, "never-there"]) == [node_id]


@pytest.fixture
async def undeletable(database: Database) -> AsyncIterator[None]:
    """A database that refuses to delete nodes."""
    async with database.session() as session:
        await session.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION USING ERRCODE = '57014'; END $$"
            )
        )
        await session.execute(text("CREATE TRIGGER refuse BEFORE DELETE ON nodes EXECUTE FUNCTION refuse()"))
    yield
    async with database.session() as session:
        await session.execute(text("DROP FUNCTION refuse CASCADE"))


@pytest.mark.usefixtures("undeletable")
async def test_a_removal_that_fails_changes_nothing(database: Database, life: NodeLifecycle, nodes: Nodes) -> None:
    """H44: all or nothing."""
    node_id = (await nodes.upsert(a_node(), now=NOON, credential_hash="stays", approve=True)).id
    await fill(database, node_id)
    before = await count(database, node_id)
    assert before >= len(tables_below_nodes())
    with pytest.raises(NodesmithError):
        await life.remove(node_id, now=NOON)
    assert await count(database, node_id) == before
    assert await life.why_retired("stays") is None


async def test_a_retired_credential_says_why(life: NodeLifecycle, nodes: Nodes) -> None:
    """R15."""
    removed = (await nodes.upsert(a_node(), now=NOON, credential_hash="c-removed", approve=True)).id
    reset = (await nodes.upsert(a_node(), now=NOON, credential_hash="c-reset", approve=True)).id
    await life.remove(removed, now=NOON)
    await life.reset_credential(reset, now=NOON)
    assert await life.why_retired("c-removed") is StopWhy.REMOVED
    assert await life.why_retired("c-reset") is StopWhy.CREDENTIAL_RESET
    assert await life.why_retired("never-seen") is None


async def test_of_many_approvals_at_once_one_is_given(nodes: Nodes) -> None:
    """R16: the check is in the WHERE of the UPDATE."""
    node_id = await registered(nodes, a_node(), approve=False)
    given = await asyncio.gather(*(nodes.approve(node_id, now=NOON) for _ in range(5)))
    assert given.count(True) == 1


async def test_free_memory_is_what_the_node_said_last(nodes: Nodes) -> None:
    """Nothing is reserved, so nothing is left over from before a registration."""
    request = a_node(total_vram=24, available_vram=3)
    await registered(nodes, request)
    view = await nodes.upsert(
        request.model_copy(update={"available_vram": 24}), now=NOON, credential_hash=None, approve=False
    )
    assert view.available_vram == 24

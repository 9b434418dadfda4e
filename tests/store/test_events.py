"""The event feed: a reader that follows by id misses no event."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import psycopg
import pytest

from nodesmith.domain.operation import State
from nodesmith.store.database import Database
from nodesmith.store.operations.events import EventFeed
from nodesmith.store.operations.operations import OperationTable
from tests.servers import PostgresForTests
from tests.store.transitions import a_request, transition

WRITERS = 50
WRITES_EACH = 6

SLOW_COMMITS = """
    CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_sleep(CASE WHEN random() < 0.2 THEN 0.02 ELSE 0 END); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON operation_events
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dawdle();
"""
"""Some writers take long between event id and commit: without the lock others would overtake them."""


@pytest.fixture
async def slow_database(postgres_server: PostgresForTests, template: str) -> AsyncIterator[Database]:
    """Many concurrent transactions, whose commits overtake each other if they can."""
    url = await postgres_server.create_database(template=template)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(SLOW_COMMITS)
    database = Database(url, pool_size=25)
    yield database
    await database.close()


async def follow(feed: EventFeed, since: int, count: int) -> list[int]:
    """Read like the event stream: only events after the last seen id."""
    seen: list[int] = []
    while len(seen) < count:
        seen += [event.id for event in await feed.after(seen[-1] if seen else since, limit=1000)]
    return seen


async def test_reader_that_follows_by_number_misses_nothing_of_fifty_writers(slow_database: Database) -> None:
    """S21."""
    operations, feed = OperationTable(slow_database), EventFeed(slow_database)

    async def write(_writer: int) -> None:
        request = a_request()
        for number in range(1, WRITES_EACH + 1):
            assert (await operations.record(transition(request, State.RUNNING, at=number, seq=number))).written

    reader = asyncio.create_task(follow(feed, 0, WRITERS * WRITES_EACH))
    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    seen = await asyncio.wait_for(reader, 20)
    assert seen == sorted(set(seen))
    assert [event.id for event in await feed.after(0, limit=10_000)] == seen


async def test_feed_is_filtered_by_operation_node_and_batch(operations: OperationTable, feed: EventFeed) -> None:
    since = await feed.latest_id()
    first, second = a_request(node_id="f1", batch_id="fb"), a_request(node_id="f2")
    await operations.record(transition(first, State.RUNNING))
    await operations.record(transition(second, State.RUNNING))
    for wanted in ({"op_id": first.op_id}, {"node_id": "f1"}, {"batch_id": "fb"}):
        assert [event.op_id for event in await feed.after(since, limit=9, **wanted)] == [first.op_id]
    assert [event.op_id for event in await feed.after(since, limit=9)] == [first.op_id, second.op_id]
    assert (await feed.after(since, limit=9))[-1].id == await feed.latest_id()


async def test_notify_wakes_a_reader_long_before_the_tick(database: Database, operations: OperationTable) -> None:
    async with aclosing(EventFeed(database, tick_s=3600).wakeups()) as wakeups:
        await anext(wakeups)
        await operations.record(transition(a_request(), State.RUNNING))
        await asyncio.wait_for(anext(wakeups), 10)


async def test_reader_is_woken_by_the_tick_when_nothing_happens(database: Database) -> None:
    async with aclosing(EventFeed(database, tick_s=0.01).wakeups()) as wakeups:
        await anext(wakeups)
        await asyncio.wait_for(anext(wakeups), 10)


async def test_listening_continues_after_the_server_ended_the_connection(
    database: Database, database_url: str, operations: OperationTable
) -> None:
    async with aclosing(EventFeed(database, tick_s=3600).wakeups()) as wakeups:
        await anext(wakeups)
        await end_listeners(database_url)
        await asyncio.wait_for(anext(wakeups), 10)  # connection lost: there may be new events
        await asyncio.wait_for(anext(wakeups), 10)  # listens again
        await operations.record(transition(a_request(), State.RUNNING))
        await asyncio.wait_for(anext(wakeups), 10)


async def end_listeners(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        ended = await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'nodesmith-events' AND datname = current_database()"
        )
        assert ended.rowcount == 1

"""The pool of connections closes every connection that it opened, also those in use while it is closed."""

import asyncio
import gc

import psycopg
import pytest
from sqlalchemy import text

from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.store.database import Database
from tests.deadlines import HANGS_S

CANCELLED = 200
STEP_S = 0.0002


async def test_connection_in_use_while_the_pool_closes_is_closed_when_returned(database_url: str) -> None:
    """A task that ends after the pool, such as a rollback after a cancel, must not leave its connection open."""
    database = Database(database_url)
    async with database.session() as session:
        raw = await (await session.connection()).get_raw_connection()
        driver = raw.driver_connection
        assert driver is not None
        await database.close()
        await session.execute(text("SELECT 1"))
    assert driver.closed


async def test_closed_pool_opens_no_connection(database_url: str) -> None:
    database = Database(database_url)
    await database.ping()
    await database.close()
    with pytest.raises(ServiceUnavailable):
        await database.ping()


async def test_calls_cancelled_at_any_moment_leave_no_connection(database_url: str) -> None:
    """Each call is cancelled a little later than the one before: while it connects, asks, commits, or returns."""
    for step in range(CANCELLED):
        await _cancel_calls(database_url, after=step * STEP_S)
    gc.collect()
    await _no_connection(database_url)


async def _cancel_calls(url: str, *, after: float) -> None:
    """In a function of its own: the traceback of a failed call keeps its connection."""
    database = Database(url, pool_size=2)
    calls = [asyncio.create_task(database.ping()) for _ in range(3)]
    await asyncio.sleep(after)
    for call in calls:
        call.cancel()
    await database.close()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        # A cancel that comes with the result of what it cancels is lost; that call finds the pool closed.
        assert result is None or isinstance(result, asyncio.CancelledError | ServiceUnavailable), result


async def _no_connection(url: str) -> None:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'nodesmith' AND datname = current_database()"
    )
    async with asyncio.timeout(HANGS_S), await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while await (await connection.execute(query)).fetchone() != (0,):  # noqa: ASYNC110 - the server ends them
            await asyncio.sleep(0.05)

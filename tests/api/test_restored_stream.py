"""Event streams of a running API whose PostgreSQL is restored to an older copy."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from nodesmith.domain.operation import State
from nodesmith.store.database import Database
from tests.api.sse import reading
from tests.api.station import Api
from tests.databases import opened
from tests.store.transitions import a_request, transition


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with opened(database_url) as database:
        yield database


async def happen(api: Api, times: int = 1) -> list[str]:
    requests = [a_request() for _ in range(times)]
    for request in requests:
        await api.deps.operations.record(transition(request, State.RUNNING, seq=1))
    return [request.op_id for request in requests]


AGAIN = """
    INSERT INTO operation_events
        (op_id, node_id, node_name, backend, kind, run_id, at, seq, state, detail, attempt)
    SELECT op_id, node_id, node_name, backend, kind, run_id, at + interval '1 s' * number, seq + number, state, detail,
        attempt
    FROM operation_events, generate_series(1, :again) AS number WHERE id = :last
"""


async def restore(database: Database, last: int, *, again: int) -> None:
    """As an older copy has it: later events are gone, and their numbers were given to others when anybody looks."""
    async with database.session() as session:
        await session.execute(text("DELETE FROM operation_events WHERE id > :last"), {"last": last})
        await session.execute(text(f"ALTER TABLE operation_events ALTER COLUMN id RESTART WITH {last + 1}"))
        await session.execute(text(AGAIN), {"last": last, "again": again})


@pytest.mark.parametrize("again", [1, 3, 5], ids=["fewer", "as many", "more"])
async def test_open_stream_gets_a_reset_after_a_restore_and_continues(api: Api, database: Database, again: int) -> None:
    """However many events came since the restore: the number alone does not tell."""
    async with reading(api) as reader:
        await happen(api)
        kept = (await reader.next()).number
        assert kept is not None
        await happen(api, 3)
        assert [event.number for event in await reader.take(3)] == [kept + 1, kept + 2, kept + 3]
        await restore(database, kept, again=again)
        await happen(api)
        reported = await reader.next()
        assert (reported.kind, reported.number) == ("reset", reported.data["last_event_id"])
        assert kept < (reported.number or 0) <= kept + again + 1, "what came before it is in what the reader reads anew"
        [last] = await happen(api)
        seen = await reader.next()
        while seen.data["op_id"] != last:
            seen = await reader.next()
        assert seen.number == kept + again + 2


async def test_reader_with_the_number_of_a_lost_event_gets_a_reset(api: Api, database: Database) -> None:
    await happen(api)
    latest = await api.deps.events._feed.latest_id()
    async with reading(api, last_event_id=latest + 7) as reader:
        reported = await reader.next()
        assert (reported.kind, reported.number, reported.data) == ("reset", latest, {"last_event_id": latest})
        [op_id] = await happen(api)
        assert (await reader.next()).data["op_id"] == op_id

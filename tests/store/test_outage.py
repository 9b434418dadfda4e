"""Outages of PostgreSQL: every call ends with `ServiceUnavailable` within its timeout."""

import asyncio
import os
import signal
import time
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy import text

from nodesmith.domain.errors import InvalidRequest, ServiceUnavailable
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from tests.databases import opened
from tests.deadlines import HANGS_S
from tests.servers import PostgresForTests, free_port


async def test_refused_connection_is_unavailable() -> None:
    async with opened(f"postgresql://nodesmith@127.0.0.1:{free_port()}/nodesmith") as database:
        with pytest.raises(ServiceUnavailable):
            await database.ping()
        with pytest.raises(ServiceUnavailable):
            await database.migrate()


async def test_tables_that_are_not_migrated_yet_are_an_outage(postgres_server: PostgresForTests) -> None:
    async with opened(await postgres_server.create_database()) as database:
        with pytest.raises(ServiceUnavailable):
            await Nodes(database).list()


async def test_text_that_postgresql_cannot_hold_is_the_callers_fault(database: Database) -> None:
    with pytest.raises(InvalidRequest):
        await Nodes(database).find("a\0b")


async def test_server_that_accepts_and_never_answers_is_unavailable() -> None:
    clients: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _reader, writer: clients.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with opened(f"postgresql://nodesmith@127.0.0.1:{port}/nodesmith") as database:
        started = time.monotonic()
        with pytest.raises(ServiceUnavailable):
            await database.ping()
        assert time.monotonic() - started < 20
    silent.close()
    for writer in clients:
        writer.close()


async def test_frozen_server_blocks_no_call_beyond_the_timeout(database_url: str) -> None:
    """The server is frozen in the middle of a query, like a machine that is swapping."""
    database = Database(database_url, limit_s=0.2)
    async with database.autocommit() as connection:
        pid = await connection.scalar(text("SELECT pg_backend_pid()"))
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(ServiceUnavailable):
            await database.ping()
        assert time.monotonic() - started < 2, "the driver waits five seconds for its cancel to be taken"
    finally:
        os.kill(pid, signal.SIGCONT)
    await _answers_again(database)
    await database.close()


async def _answers_again(database: Database) -> None:
    """Its limit is so short that a busy machine may need several calls."""
    async with asyncio.timeout(HANGS_S):
        while True:
            with suppress(ServiceUnavailable):
                return await database.ping()


async def test_a_busy_server_is_waited_for_as_long_as_it_answers_others(database_url: str) -> None:
    """A burst is no outage: five hundred concurrent requests wait for a connection, and none is refused."""
    database = Database(database_url, pool_size=1, limit_s=0.5)

    async def ask() -> None:
        async with database.autocommit() as connection:
            await connection.execute(text("SELECT pg_sleep(0.05)"))

    await asyncio.gather(*(ask() for _ in range(40)))
    await database.close()


async def test_connections_that_the_server_ended_are_replaced(database: Database, database_url: str) -> None:
    nodes = Nodes(database)
    await nodes.list()
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
        # The timeout makes it wait until each backend has ended; without, its connection may look alive for a moment.
        ended = await connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'nodesmith'"
            " AND datname = current_database()"
        )
        assert {row[0] for row in await ended.fetchall()} == {True}
    await nodes.list()


async def test_password_comes_beside_the_url(postgres_server: PostgresForTests, database_url: str) -> None:
    bare = database_url.replace(f":{postgres_server.server.password}@", "@")
    assert bare != database_url
    database = Database(bare, password=postgres_server.server.password)
    await database.ping()
    await database.close()

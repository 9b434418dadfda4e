"""Wake-ups of the scheduler: PostgreSQL notifies after every commit that may concern the placement of replicas."""

import asyncio
from collections.abc import AsyncGenerator

import psycopg
import structlog

from nodesmith.store.database import Database

CHANNEL = "placement"
CAPACITY = "capacity"
"""what did not fit may fit now"""
GATHER_S = 0.25
RETRY_S = 1.0

log = structlog.get_logger(__name__)


class PlacementFeed:
    def __init__(self, database: Database, *, every_s: float, gather_s: float = GATHER_S) -> None:
        self._database = database
        self._every_s = every_s
        self._gather_s = gather_s
        self._next_s = every_s

    async def wakeups(self) -> AsyncGenerator[bool]:
        """Yield at once, after notifications, after a reconnect, and every `every_s` seconds.

        The value is True if what did not fit may fit now; also if notifications may have been missed.
        """
        while True:
            try:
                async with await self._listen() as connection:
                    changed = True
                    while True:
                        yield changed
                        changed = await self._next(connection)
            except psycopg.OperationalError as error:
                log.warning("placement.listen_lost", error=str(error).strip())
                await asyncio.sleep(RETRY_S)

    def hasten(self, seconds: float) -> None:
        """Yield the next time within so many seconds."""
        self._next_s = min(self._every_s, max(seconds, self._gather_s))

    async def _next(self, connection: psycopg.AsyncConnection) -> bool:
        """Wait for a notification, then gather those that follow it."""
        within, self._next_s = self._next_s, self._every_s
        payloads = [each.payload async for each in connection.notifies(timeout=within, stop_after=1)]
        if payloads:
            payloads += [each.payload async for each in connection.notifies(timeout=self._gather_s)]
        return CAPACITY in payloads

    async def _listen(self) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(
            self._database.conninfo, autocommit=True, connect_timeout=2, application_name="nodesmith-placement"
        )
        await connection.execute(f"LISTEN {CHANNEL}")
        return connection

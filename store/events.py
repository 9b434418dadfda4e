"""The event feed: what is new since a number, and a wake-up when there may be something new."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import psycopg
import structlog
from sqlalchemy import func, select

from contracts.operation_http import OperationEvent
from store.database import Database
from store.models import OperationEventRow
from store.views import event_view

CHANNEL = "operation_events"
TICK_S = 5.0

log = structlog.get_logger(__name__)


class EventFeed:
    """The table `operation_events`, read forwards by number."""

    def __init__(self, database: Database, *, tick_s: float = TICK_S) -> None:
        self._database = database
        self._tick_s = tick_s

    async def after(
        self,
        last_id: int,
        *,
        limit: int,
        op_id: str | None = None,
        node_id: str | None = None,
        batch_id: str | None = None,
    ) -> Sequence[OperationEvent]:
        event = OperationEventRow
        newer = select(event).where(event.id > last_id).order_by(event.id).limit(limit)
        for column, wanted in ((event.op_id, op_id), (event.node_id, node_id), (event.batch_id, batch_id)):
            if wanted is not None:
                newer = newer.where(column == wanted)
        async with self._database.reading() as session:
            return [event_view(row) for row in await session.scalars(newer)]

    async def latest_id(self) -> int:
        async with self._database.reading() as session:
            return await session.scalar(select(func.max(OperationEventRow.id))) or 0

    async def wakeups(self) -> AsyncGenerator[None]:
        """Yield whenever there may be news: at once, on NOTIFY, after a reconnect, and every few seconds anyway."""
        while True:
            try:
                async with await self._listen() as connection:
                    while True:
                        yield
                        async for _ in connection.notifies(timeout=self._tick_s, stop_after=1):
                            pass
            except psycopg.OperationalError as error:
                log.warning("event_feed.listen_lost", error=str(error).strip())
                yield
                await asyncio.sleep(min(self._tick_s, 1.0))

    async def _listen(self) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(
            self._database.conninfo, autocommit=True, connect_timeout=2, application_name="nodesmith-events"
        )
        await connection.execute(f"LISTEN {CHANNEL}")
        return connection

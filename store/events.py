"""The event feed: what is new since a number, and a wake-up when there may be something new."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import psycopg
import structlog
from sqlalchemy import func, select

from contracts.operation_http import OperationEvent
from domain.operation import OPEN
from store.database import Database
from store.models import OperationEventRow, OperationRow
from store.views import event_view

CHANNEL = "operation_events"
TICK_S = 5.0
NEWEST_EVENT = select(func.max(OperationEventRow.id))
"""numbers are given in the order of commits: whatever this snapshot does not show has a higher one"""
_IS_OPEN = OperationRow.state.in_([state.value for state in OPEN])

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
            return await session.scalar(NEWEST_EVENT) or 0

    async def members_of(self, batch_id: str) -> tuple[int, set[str]]:
        """The number of the newest event, and the open operations of a batch at that moment."""
        members = select(OperationRow.op_id).where(OperationRow.batch_id == batch_id, _IS_OPEN)
        async with self._database.snapshot() as session:
            return await session.scalar(NEWEST_EVENT) or 0, set(await session.scalars(members))

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

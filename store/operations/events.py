"""The event feed: events after a given id, and wake-ups when there may be new ones."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import psycopg
import structlog
from sqlalchemy import func, select

from nodesmith.domain.operation import OPEN, StateChange
from nodesmith.store.database import Database
from nodesmith.store.entities import state_change_of
from nodesmith.store.tables.core import OperationEventRow, OperationRow

CHANNEL = "operation_events"
ROUTES = "routes"
"""the replicas of a model changed, or with an empty payload those of several"""
TICK_S = 5.0
NEWEST_EVENT = select(func.max(OperationEventRow.id))
"""ids follow the order of commits: every event that this snapshot does not show has a higher id"""
_IS_OPEN = OperationRow.state.in_([state.value for state in OPEN])

log = structlog.get_logger(__name__)


class EventFeed:
    """The table `operation_events`, read in the order of ids."""

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
    ) -> Sequence[StateChange]:
        event = OperationEventRow
        newer = select(event).where(event.id > last_id).order_by(event.id).limit(limit)
        for column, wanted in ((event.op_id, op_id), (event.node_id, node_id), (event.batch_id, batch_id)):
            if wanted is not None:
                newer = newer.where(column == wanted)
        async with self._database.reading() as session:
            return [state_change_of(row) for row in await session.scalars(newer)]

    async def from_event(self, known: StateChange, *, limit: int) -> Sequence[StateChange] | None:
        """Events after this one; None when it is missing, because PostgreSQL was restored from a backup.

        The event itself is read again, because another event may have its id after a restore.
        """
        found = await self.after(known.id - 1, limit=limit + 1)
        is_same = bool(found) and (found[0].id, found[0].op_id, found[0].at) == (known.id, known.op_id, known.at)
        return found[1:] if is_same else None

    async def newest(self) -> StateChange | None:
        last = select(OperationEventRow).order_by(OperationEventRow.id.desc()).limit(1)
        async with self._database.reading() as session:
            row = await session.scalar(last)
        return state_change_of(row) if row else None

    async def latest_id(self) -> int:
        async with self._database.reading() as session:
            return await session.scalar(NEWEST_EVENT) or 0

    async def members_of(self, batch_id: str) -> tuple[int, set[str]]:
        """The id of the newest event, and the open operations of a batch, from one snapshot."""
        members = select(OperationRow.op_id).where(OperationRow.batch_id == batch_id, _IS_OPEN)
        async with self._database.snapshot() as session:
            return await session.scalar(NEWEST_EVENT) or 0, set(await session.scalars(members))

    async def wakeups(self) -> AsyncGenerator[frozenset[str]]:
        """Yield when there may be new events: at once, on NOTIFY, after a reconnect, and every few seconds.

        The value names the models whose replicas or rules changed; an empty name stands for any.
        """
        while True:
            try:
                async with await self._listen() as connection:
                    changed: frozenset[str] = frozenset()
                    while True:
                        yield changed
                        told = [each async for each in connection.notifies(timeout=self._tick_s, stop_after=1)]
                        changed = frozenset(each.payload for each in told if each.channel == ROUTES)
            except psycopg.OperationalError as error:
                log.warning("event_feed.listen_lost", error=str(error).strip())
                yield frozenset({""})
                await asyncio.sleep(min(self._tick_s, 1.0))

    async def _listen(self) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(
            self._database.conninfo, autocommit=True, connect_timeout=2, application_name="nodesmith-events"
        )
        await connection.execute(f"LISTEN {CHANNEL}")
        await connection.execute(f"LISTEN {ROUTES}")
        return connection

"""Calls that routers hold open on replicas: exact counters, whatever is repeated, lost or killed.

A replica's `in_flight` is the sum of its holds. Transactions lock the holder first, then replicas by id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import ColumnElement, Text, bindparam, delete, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.dml import ReturningUpdate

from nodesmith.domain.replica import Replica
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.models.statements import LOADED, SINK, is_serving, memory_free, replica_of
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from nodesmith.store.tables.models import ReplicaHolderRow, ReplicaHoldRow, ReplicaRow

GATEWAY, ROUTER = "gateway", "router"
SILENT_AFTER = {GATEWAY: timedelta(seconds=10), ROUTER: timedelta(seconds=60)}
"""a holder that is silent for longer is deleted, and its calls no longer count"""
MODEL_LOCKS = 7_305_004
"""first key of the advisory locks that serialise the choice among the replicas of one model"""
DEADLOCK = "40P01"
_TRIES = 5

T = TypeVar("T")

_LOCK_MODEL = text("SELECT pg_advisory_xact_lock(:first, hashtext(:model))")
_ASYNC_COMMIT = text("SET LOCAL synchronous_commit = off")
_LOCK_REPLICAS = (
    select(ReplicaRow.id)
    .where(ReplicaRow.id == func.any(bindparam("ids", type_=ARRAY(Text))))
    .order_by(ReplicaRow.id)
    .with_for_update()
)
_SYNC = text("""
    WITH told AS (
        SELECT told.replica_id, told.calls, coalesce(held.in_flight, 0) AS before
        FROM unnest(CAST(:ids AS text[]), CAST(:calls AS bigint[])) AS told (replica_id, calls)
        JOIN replicas ON replicas.id = told.replica_id
        LEFT JOIN replica_holds AS held ON held.holder_id = :holder AND held.replica_id = told.replica_id),
    written AS (
        INSERT INTO replica_holds (holder_id, replica_id, in_flight)
        SELECT :holder, replica_id, calls FROM told
        ON CONFLICT (holder_id, replica_id) DO UPDATE SET in_flight = excluded.in_flight)
    UPDATE replicas SET in_flight = in_flight + told.calls - told.before, last_used = now()
    FROM told WHERE replicas.id = told.replica_id
    RETURNING replicas.id, replicas.in_flight
""")


class Holds:
    """The tables `replica_holders` and `replica_holds`."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def acquire(self, model: str, holder: str, *, prefer: str = "") -> Replica | None:
        """Choose a replica for one call, and count the call; None if none is loaded.

        The order is that of every router: fewest calls, least recently used, most free memory. A preferred replica is
        chosen if it can be.
        """

        async def step(session: AsyncSession) -> Replica | None:
            await session.execute(_ASYNC_COMMIT)
            await session.execute(_LOCK_MODEL, {"first": MODEL_LOCKS, "model": model})
            await _touch(session, holder, ROUTER)
            row = await session.scalar(self._pick(model, prefer))
            if row is None:
                return None
            first = insert(ReplicaHoldRow).values(holder_id=holder, replica_id=row.id, in_flight=1)
            more = {"in_flight": ReplicaHoldRow.in_flight + 1}
            key = [ReplicaHoldRow.holder_id, ReplicaHoldRow.replica_id]
            await session.execute(first.on_conflict_do_update(index_elements=key, set_=more))
            return replica_of(row)

        return await self._retrying(step)

    async def release(self, holder: str, replica_id: str) -> bool:
        """End one call. False if this holder has none there: a repeated release changes nothing (R89)."""

        async def step(session: AsyncSession) -> bool:
            await session.execute(_ASYNC_COMMIT)
            await session.execute(_touched(holder))
            await session.execute(_LOCK_REPLICAS, {"ids": [replica_id]})
            held = update(ReplicaHoldRow).where(
                ReplicaHoldRow.holder_id == holder,
                ReplicaHoldRow.replica_id == replica_id,
                ReplicaHoldRow.in_flight > 0,
            )
            ended = held.values(in_flight=ReplicaHoldRow.in_flight - 1).returning(ReplicaHoldRow.in_flight)
            if await session.scalar(ended) is None:
                return False
            replica = update(ReplicaRow).where(ReplicaRow.id == replica_id)
            await session.execute(replica.values(in_flight=ReplicaRow.in_flight - 1, last_used=func.now()))
            return True

        return await self._retrying(step)

    async def sync(self, holder: str, calls: Mapping[str, int], *, kind: str = GATEWAY) -> dict[str, int]:
        """Write the absolute numbers of a holder's calls by replica; returns the totals of those that still exist."""
        ids = sorted(calls)

        async def step(session: AsyncSession) -> dict[str, int]:
            await session.execute(_ASYNC_COMMIT)
            await _touch(session, holder, kind)
            await session.execute(_LOCK_REPLICAS, {"ids": ids})
            told = await session.execute(_SYNC, {"holder": holder, "ids": ids, "calls": [calls[each] for each in ids]})
            return {row.id: row.in_flight for row in told}

        return await self._retrying(step)

    async def renew(self, holder: str) -> bool:
        """Prove that a holder lives; False if it was deleted, and its calls no longer count."""
        async with self._database.session() as session:
            return await session.scalar(_touched(holder)) is not None

    async def leave(self, holder: str) -> bool:
        """Delete a holder; its calls no longer count."""
        return await self._delete(ReplicaHolderRow.id == holder)

    async def delete_silent(self) -> Sequence[str]:
        """Delete the holders that are silent, each in its own transaction, and return them."""
        row = ReplicaHolderRow
        limits = [(row.kind == kind) & (row.seen_at < func.now() - limit) for kind, limit in SILENT_AFTER.items()]
        is_silent = or_(*limits)
        async with self._database.reading() as session:
            silent = list(await session.scalars(select(row.id).where(is_silent)))
        return [holder for holder in silent if await self._delete((row.id == holder) & is_silent)]

    async def _delete(self, condition: ColumnElement[bool]) -> bool:
        async def step(session: AsyncSession) -> bool:
            gone = delete(ReplicaHolderRow).where(condition).returning(ReplicaHolderRow.id)
            return await session.scalar(gone) is not None

        return await self._retrying(step)

    def _pick(self, model: str, prefer: str) -> ReturningUpdate[ReplicaRow]:
        found = (
            select(ReplicaRow.id)
            .join(NodeRow, NodeRow.id == ReplicaRow.node_id)
            .outerjoin(HeartbeatSinkRow, SINK)
            .where(ReplicaRow.model_name == model, ReplicaRow.state == LOADED, is_serving(self._clock()))
            .order_by((ReplicaRow.id == prefer).desc(), ReplicaRow.in_flight, ReplicaRow.last_used.nulls_first())
            .order_by(memory_free().desc().nulls_last(), ReplicaRow.id)
            .limit(1)
            .with_for_update(of=ReplicaRow)
        )
        chosen = update(ReplicaRow).where(ReplicaRow.id == found.correlate(None).scalar_subquery())
        return chosen.values(in_flight=ReplicaRow.in_flight + 1, last_used=func.now()).returning(ReplicaRow)

    async def _retrying(self, step: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """Run a transaction again if PostgreSQL ended it because of a deadlock."""
        for again in reversed(range(_TRIES)):
            try:
                async with self._database.session() as session:
                    return await step(session)
            except OperationalError as error:
                if not again or getattr(error.orig, "sqlstate", None) != DEADLOCK:
                    raise
                await asyncio.sleep(0.01)
        raise AssertionError  # the loop returns or raises


async def _touch(session: AsyncSession, holder: str, kind: str) -> None:
    """Register the holder or renew it; its row stays locked until the end of the transaction."""
    first = insert(ReplicaHolderRow).values(id=holder, kind=kind, seen_at=func.clock_timestamp())
    seen = {"seen_at": first.excluded.seen_at}
    await session.execute(first.on_conflict_do_update(index_elements=[ReplicaHolderRow.id], set_=seen))


def _touched(holder: str) -> ReturningUpdate[str]:
    known = update(ReplicaHolderRow).where(ReplicaHolderRow.id == holder)
    return known.values(seen_at=func.clock_timestamp()).returning(ReplicaHolderRow.id)

"""Queries across operations: the history in pages, pending work, dismissal and purging."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, select, tuple_, update

from nodesmith.domain.operation import Operation
from nodesmith.domain.operation_filter import OpenWork, OperationFilter
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.cursors import cursor_after, read_moment
from nodesmith.store.database import Database
from nodesmith.store.entities import operation_of
from nodesmith.store.operations.filters import filter_conditions
from nodesmith.store.operations.idempotency import KEY_EXPIRED
from nodesmith.store.operations.operations import IS_OPEN, IS_UNSUCCESSFUL
from nodesmith.store.tables.core import BatchMemberRow, BatchRow, IdempotencyKeyRow, OperationRow, OrderRow

PURGE_LIMIT = 1000
_BY_END = "operations by end"
_NEWEST = (OperationRow.ended_at.desc(), OperationRow.op_id.desc())


class History:
    """The table `operations`, for queries across many rows."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def page(
        self,
        wanted: OperationFilter,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str = "",
        limit: int = 50,
    ) -> tuple[list[Operation], str | None]:
        """Ended operations, the latest end first, and the cursor of the next page."""
        ended = OperationRow.ended_at
        conditions = [ended.is_not(None), OperationRow.cleared_at.is_(None), *filter_conditions(wanted)]
        if since is not None:
            conditions.append(ended >= since)
        if until is not None:
            conditions.append(ended < until)
        if cursor:
            conditions.append(tuple_(ended, OperationRow.op_id) < tuple_(*read_moment(cursor, _BY_END)))
        found = await self._fetch(conditions, _NEWEST, limit + 1)
        shown = found[:limit]
        return shown, _cursor_after(shown[-1]) if len(found) > limit else None

    async def list_open(self, wanted: OperationFilter, *, limit: int) -> Sequence[Operation]:
        return await self._fetch([IS_OPEN, *filter_conditions(wanted)], (OperationRow.created_at.asc(),), limit)

    async def undismissed(self, wanted: OperationFilter, *, limit: int) -> Sequence[Operation]:
        """Unsuccessful operations that were not dismissed yet."""
        return await self._fetch([IS_UNSUCCESSFUL, *filter_conditions(wanted)], (OperationRow.created_at.asc(),), limit)

    async def dismiss(self, op_ids: Sequence[str]) -> set[str]:
        """Remove these from the live list; returns the ids that were on it."""
        listed = update(OperationRow).where(OperationRow.op_id.in_(op_ids), IS_UNSUCCESSFUL)
        async with self._database.session() as session:
            done = listed.values(dismissed_at=self._clock()).returning(OperationRow.op_id)
            return set(await session.scalars(done))

    async def clear(self) -> int:
        """Hide all ended operations from the history, except those that are still on the live list."""
        listed = (OperationRow.ended_at.is_not(None), OperationRow.cleared_at.is_(None), ~IS_UNSUCCESSFUL)
        async with self._database.session() as session:
            cleared = update(OperationRow).where(*listed).values(cleared_at=self._clock())
            return len(list(await session.scalars(cleared.returning(OperationRow.op_id))))

    async def purge(self, ended_before: datetime) -> int:
        """Delete batches that ended before that time, then operations that no remaining batch contains.

        At most 1000 per call, to keep the locks short; returns how many operations were deleted.
        """
        old_batches = select(BatchRow.batch_id).where(BatchRow.ended_at < ended_before).limit(PURGE_LIMIT)
        named = exists().where(BatchMemberRow.op_id == OperationRow.op_id).correlate(OperationRow)
        old = select(OperationRow.op_id).where(OperationRow.ended_at < ended_before, ~named).limit(PURGE_LIMIT)
        async with self._database.session() as session:
            await session.execute(delete(BatchRow).where(BatchRow.batch_id.in_(old_batches)))
            gone = delete(OperationRow).where(OperationRow.op_id.in_(old)).returning(OperationRow.op_id)
            purged = list(await session.scalars(gone))
            await session.execute(delete(OrderRow).where(OrderRow.op_id.in_(purged)))
            await session.execute(delete(OrderRow).where(OrderRow.op_id.in_(_without_operation(ended_before))))
            await session.execute(delete(IdempotencyKeyRow).where(KEY_EXPIRED))
        return len(purged)

    async def pending(self) -> tuple[list[OpenWork], list[OpenWork]]:
        """Open operations per node and per backend, the largest number first."""
        row = OperationRow
        grouped = select(
            *(row.node_id, row.node_name, row.family, row.state, row.reason),
            *(func.count(), func.min(row.created_at), func.min(row.until)),
        ).where(IS_OPEN)
        by = (row.node_id, row.node_name, row.family, row.state, row.reason)
        async with self._database.session() as session:
            groups = list(await session.execute(grouped.group_by(*by)))
        return (
            _sum_up((node_id, name, rest) for node_id, name, _, *rest in groups),
            _sum_up(("", family, rest) for _, _, family, *rest in groups),
        )

    async def _fetch(
        self, conditions: Iterable[ColumnElement[bool]], order: Iterable[ColumnElement[Any]], limit: int
    ) -> list[Operation]:
        now = self._clock()
        wanted = select(OperationRow).where(*conditions).order_by(*order).limit(limit)
        async with self._database.session() as session:
            return [operation_of(row, now) for row in await session.scalars(wanted)]


def _without_operation(ended_before: datetime) -> Select[str]:
    """Expired orders without an operation: of members never started, and of requests that did not start."""
    begun = exists().where(OperationRow.op_id == OrderRow.op_id).correlate(OrderRow)
    ended = OrderRow.exp < int(ended_before.timestamp() * 1000)
    return select(OrderRow.op_id).where(ended, ~begun).limit(PURGE_LIMIT)


def _cursor_after(last: Operation) -> str:
    assert last.ended_at is not None  # noqa: S101 - only what has ended is in the history
    return cursor_after(_BY_END, last.ended_at, last.op_id)


def _sum_up(groups: Iterable[tuple[str, str, list[Any]]]) -> list[OpenWork]:
    """Sum up to one entry per name, the largest number first."""
    works: dict[tuple[str, str], OpenWork] = {}
    for node_id, name, (state, reason, number, oldest, until) in groups:
        work = works.setdefault((node_id, name), OpenWork(node_id=node_id, name=name))
        work.add(number, state=state, reason=reason, oldest=oldest, until=until)
    return sorted(works.values(), key=lambda work: (-work.total, work.name))

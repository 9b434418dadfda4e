"""The projection of the operations: rows only move forward, and each change is written with its event."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json
from sqlalchemy import (
    Boolean,
    ColumnElement,
    RowMapping,
    Select,
    TextClause,
    literal_column,
    or_,
    select,
    text,
    true,
    tuple_,
)

from nodesmith.contracts.nats.messages import Installed, Progress
from nodesmith.contracts.nats.orders import Order
from nodesmith.contracts.nats.wire import Signed
from nodesmith.contracts.temporal.operations import OperationRequest, Projection, RecordResult, RowEnd
from nodesmith.domain.operation import ENDED, OPEN, Operation, Reason, State, StateChange
from nodesmith.domain.operation_filter import OperationFilter, OperationScope
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.cursors import cursor_after, read_moment
from nodesmith.store.database import EVENT_LOCK, Database
from nodesmith.store.entities import operation_of, state_change_of
from nodesmith.store.operations.events import CHANNEL, NEWEST_EVENT
from nodesmith.store.operations.filters import filter_conditions
from nodesmith.store.operations.orders import INSERT_ORDERS, order_rows
from nodesmith.store.tables.core import NODE_BOUND, UNSUCCESSFUL, OperationEventRow, OperationRow, one_of
from nodesmith.store.text import storable

Fields = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""the time of the row that the API writes: older than every write of the workflow"""


def _state_in(states: Iterable[State]) -> ColumnElement[bool]:
    """A condition with literals, so that the planner matches it with a partial index."""
    return literal_column(one_of("operations.state", states), Boolean)


IS_OPEN = _state_in(OPEN)
_HAS_ENDED = _state_in(ENDED)
_IS_NODE_BOUND = _state_in(NODE_BOUND)
IS_UNSUCCESSFUL = _state_in(UNSUCCESSFUL) & OperationRow.dismissed_at.is_(None)

_SCOPES: dict[OperationScope, tuple[ColumnElement[bool], ...]] = {
    OperationScope.LIVE: (or_(IS_OPEN, IS_UNSUCCESSFUL),),
    OperationScope.OPEN: (IS_OPEN,),
    OperationScope.ALL: (),
}
_BY_CREATION = "operations by creation"

_GAUGES = text(f"""
    UPDATE operations
    SET phase = tick.phase, bytes_done = tick.bytes_done, bytes_total = tick.bytes_total,
        percentage = tick.percentage, rate = tick.rate, eta_s = tick.eta_s,
        progressed_at = CASE
            WHEN (operations.phase, operations.bytes_done) IS DISTINCT FROM (tick.phase, tick.bytes_done)
            THEN :now ELSE operations.progressed_at END
    FROM jsonb_to_recordset(CAST(:ticks AS jsonb)) AS tick (
        op_id text, node_id text, phase text, bytes_done bigint, bytes_total bigint,
        percentage double precision, rate double precision, eta_s double precision)
    WHERE operations.op_id IN (
        SELECT op_id FROM operations
        WHERE op_id = ANY(:op_ids) AND {one_of("state", OPEN)}
        FOR NO KEY UPDATE SKIP LOCKED)
    AND operations.op_id = tick.op_id AND operations.node_id = tick.node_id
""")  # noqa: S608 - the words come from the domain
"""Losing a gauge is harmless: a locked row is skipped until the next second."""

_GAUGE_FIELDS = {"op_id", "node_id", "phase", "bytes_done", "bytes_total", "percentage", "rate", "eta_s"}

_ROW_COLUMNS = (
    *("op_id", "kind", "node_id", "node_name", "backend", "family", "batch_id", "request", "workflow_id", "run_id"),
    *("at", "seq", "state", "reason", "detail", "until", "attempt", "cancelled_by", "before", "after", "changed"),
    *("signed_outcome", "bytes_fetched", "bytes_reused", "created_at", "dispatched_at", "ended_at"),
)
"""columns that the workflow writes; gauges and `dismissed_at` have other writers"""
_EVENT_COLUMNS = (
    *("op_id", "node_id", "node_name", "backend", "kind", "batch_id", "run_id"),
    *("at", "seq", "state", "reason", "detail", "until", "attempt"),
)


def _written(on_conflict: str, *, beside: str = "", result: str = "rows") -> TextClause:
    """Write rows and their events in one statement. Event ids are assigned under one lock, taken after the last row
    was written and released by the commit, so that ids follow the order of commits.

    `beside` is an additional CTE before the rows."""
    columns, event_columns = ", ".join(_ROW_COLUMNS), ", ".join(_EVENT_COLUMNS)
    return text(f"""
        WITH {beside} moved AS (
            INSERT INTO operations ({columns})
            SELECT {columns} FROM jsonb_populate_recordset(NULL::operations, CAST(:rows AS jsonb))
            ON CONFLICT {on_conflict}
            RETURNING operations.op_id),
        counted AS (SELECT count(*) AS rows FROM moved),
        turn AS MATERIALIZED (
            SELECT pg_advisory_xact_lock(:lock)::text AS mine, pg_notify(:channel, '') FROM counted WHERE rows > 0),
        written AS (
            INSERT INTO operation_events ({event_columns})
            SELECT {", ".join(f"event.{column}" for column in _EVENT_COLUMNS)}
            FROM turn CROSS JOIN moved
            JOIN jsonb_populate_recordset(NULL::operation_events, CAST(:events AS jsonb)) AS event USING (op_id)
            WHERE turn.mine IS NOT NULL
            ORDER BY event.at, event.seq
            ON CONFLICT DO NOTHING)
        SELECT {result} FROM counted
    """)  # noqa: S608 - the columns are ours


_END = text(f"""
    SELECT state, reason, detail, before, after, signed_outcome FROM operations
    WHERE op_id = :op_id AND {one_of("state", ENDED)}
""")  # noqa: S608 - the words come from the domain

_FIRST = _written("DO NOTHING")
_ADMITTED = _written("DO NOTHING", beside=f"ordered AS ({INSERT_ORDERS}),", result="(SELECT count(*) FROM ordered)")
_FORWARDS = _written(f"""(op_id)
    DO UPDATE SET {", ".join(f"{column} = excluded.{column}" for column in _ROW_COLUMNS if column != "op_id")}
    WHERE {one_of("operations.state", OPEN)} AND operations.node_id = excluded.node_id
    AND (NOT :only_unsent OR operations.sent = 0)
    AND ({one_of("excluded.state", ENDED)} OR CASE WHEN operations.run_id = excluded.run_id
        THEN (operations.seq, operations.at) < (excluded.seq, excluded.at)
        ELSE operations.at < excluded.at END)""")
"""Replaces the row only by a newer state, and never after it has ended. Within a run `seq` decides: a workflow task
that is executed again after a worker crash repeats its numbers at a later time, possibly with another result. A reset
run starts with old numbers, so between runs `at` decides. An end is accepted from any run."""


@dataclass(frozen=True)
class OperationSnapshot:
    """Operations of one snapshot; every later change has an event with a higher id."""

    operations: Sequence[Operation]
    last_event_id: int
    next_cursor: str | None = None


class OperationTable:
    """The tables `operations` and `operation_events`."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def find(self, op_id: str) -> Operation | None:
        found = await self._fetch(select(OperationRow).where(OperationRow.op_id == op_id))
        return found[0] if found else None

    async def detail(self, op_id: str) -> Operation | None:
        """The row and its events from one statement, so that a reader who continues after it misses none."""
        row, event = OperationRow, OperationEventRow
        wanted = select(row, event).outerjoin(event, event.op_id == row.op_id).where(row.op_id == op_id)
        now = self._clock()
        async with self._database.reading() as session:
            found = (await session.execute(wanted.order_by(event.id))).all()
        if not found:
            return None
        return operation_of(found[0][0], now, [state_change_of(each) for _, each in found if each is not None])

    async def request(self, op_id: str) -> OperationRequest | None:
        """The complete admitted request: for a retry, and to write the end of a lost run."""
        async with self._database.reading() as session:
            stored = await session.scalar(select(OperationRow.request).where(OperationRow.op_id == op_id))
        return OperationRequest.model_validate(stored) if stored else None

    async def insert_queued(self, first: Projection) -> bool:
        """Insert the API's row, unless one exists; it is older than every write of the workflow."""
        row = _row(first)
        return await self._write(_FIRST, [{**row, "at": EPOCH}], [{**row, "at": first.request.created_at}])

    async def insert_admitted(self, first: Projection, order: Order, signed: Signed) -> bool:
        """Like `insert_queued`, together with the signed order in one statement; False if the order was refused."""
        row = _row(first)
        orders = order_rows([(order, signed)])
        events = [{**row, "at": first.request.created_at}]
        return await self._write(_ADMITTED, [{**row, "at": EPOCH}], events, orders=orders)

    async def record(self, *transitions: Projection, only_unsent: bool = False) -> RecordResult:
        """Write the workflow's current row and its events.

        A refused write returns the end of the row, if any; an end is final, so a second statement can read it.
        """
        changes = [_row(each) for each in transitions]
        latest = {change["op_id"]: change for change in changes}
        if await self._write(_FORWARDS, list(latest.values()), changes, only_unsent=only_unsent):
            return RecordResult(written=True)
        async with self._database.reading() as session:
            found = await session.execute(_END, {"op_id": changes[-1]["op_id"]})
            row = found.mappings().one_or_none()
        return RecordResult(written=False, end=row_end(row) if row else None)

    async def open_operations(self) -> Sequence[Operation]:
        return await self._fetch(select(OperationRow).where(IS_OPEN).order_by(OperationRow.created_at))

    async def dispatched_to(self, node_id: str) -> Sequence[str]:
        """Ids of the open operations that were sent to that node, for which it may fetch artifacts."""
        found = select(OperationRow.op_id).where(OperationRow.node_id == node_id, IS_OPEN, OperationRow.sent > 0)
        async with self._database.reading() as session:
            return list(await session.scalars(found))

    async def ended_among(self, op_ids: Sequence[str]) -> Sequence[Operation]:
        """The ended ones of these operations; a node that still works on one must be stopped."""
        return await self._fetch(select(OperationRow).where(OperationRow.op_id.in_(op_ids), _HAS_ENDED))

    async def waiting_for(self, node_ids: Sequence[str]) -> Sequence[Operation]:
        """Operations to wake when one of these nodes returns: waiting for their node, or with a cancel to deliver."""
        away = or_(
            OperationRow.reason.in_([Reason.NODE_AWAY, Reason.NATS_DOWN]), OperationRow.state == State.CANCELLING
        )
        bound = select(OperationRow).where(OperationRow.node_id.in_(node_ids), _IS_NODE_BOUND, away)
        return await self._fetch(bound.order_by(OperationRow.created_at))

    async def held(self, *, limit: int = 500) -> Sequence[Operation]:
        """Operations that wait because of a hold, oldest first."""
        waiting = select(OperationRow).where(OperationRow.state == State.WAITING, OperationRow.reason == Reason.HELD)
        return await self._fetch(waiting.order_by(OperationRow.created_at).limit(limit))

    async def listing(
        self,
        wanted: OperationFilter | None = None,
        *,
        scope: OperationScope = OperationScope.LIVE,
        cursor: str = "",
        limit: int = 500,
    ) -> "OperationSnapshot":
        """One page of operations, newest first."""
        conditions = [*_SCOPES[scope], *filter_conditions(wanted or OperationFilter())]
        place = (OperationRow.created_at, OperationRow.op_id)
        if cursor:
            conditions.append(tuple_(*place) < tuple_(*read_moment(cursor, _BY_CREATION)))
        newest = (column.desc() for column in place)
        page = select(OperationRow).where(true(), *conditions).order_by(*newest).limit(limit + 1)
        now = self._clock()
        async with self._database.snapshot() as session:
            last_event_id = await session.scalar(NEWEST_EVENT) or 0
            found = [operation_of(row, now) for row in await session.scalars(page)]
        shown = found[:limit]
        more = len(found) > limit
        following = cursor_after(_BY_CREATION, shown[-1].created_at, shown[-1].op_id) if more else None
        return OperationSnapshot(shown, last_event_id, following)

    async def timeline(self, op_id: str) -> Sequence[StateChange]:
        wanted = select(OperationEventRow).where(OperationEventRow.op_id == op_id).order_by(OperationEventRow.id)
        async with self._database.session() as session:
            return [state_change_of(row) for row in await session.scalars(wanted)]

    async def write_gauges(self, ticks: Sequence[Progress]) -> None:
        """Write the last value of each gauge in one UPDATE; ended operations and those of other nodes stay."""
        latest = {(tick.node_id, tick.op_id): tick.model_dump(mode="json", include=_GAUGE_FIELDS) for tick in ticks}
        op_ids = [op_id for _, op_id in latest]
        values = {"now": self._clock(), "ticks": json.dumps(list(latest.values())), "op_ids": op_ids}
        async with self._database.session() as session:
            await session.execute(_GAUGES, values)

    async def states(self, op_ids: Sequence[str]) -> dict[str, tuple[State, Reason | None]]:
        """State and reason only: a cheap query for callers that poll for an end."""
        wanted = select(OperationRow.op_id, OperationRow.state, OperationRow.reason)
        async with self._database.reading() as session:
            found = await session.execute(wanted.where(OperationRow.op_id.in_(op_ids)))
            return {op_id: (State(state), Reason(reason) if reason else None) for op_id, state, reason in found}

    async def _write(
        self, statement: TextClause, rows: Sequence[Fields], events: Sequence[Fields], **values: object
    ) -> bool:
        """Execute one statement, and so one transaction: a row and its events are written together or not at all."""
        event_rows = [{column: event[column] for column in _EVENT_COLUMNS} for event in events]
        values |= {"lock": EVENT_LOCK, "channel": CHANNEL, "rows": _json(rows), "events": _json(event_rows)}
        async with self._database.autocommit() as connection:
            return bool((await connection.execute(statement, values)).scalar_one())

    async def _fetch(self, statement: Select[OperationRow]) -> Sequence[Operation]:
        now = self._clock()
        async with self._database.reading() as session:
            return [operation_of(row, now) for row in await session.scalars(statement)]


def row_end(row: RowMapping) -> RowEnd:
    """The end that an ended row records."""
    return RowEnd.model_validate({name: row[name] for name in RowEnd.model_fields})


def _json(value: Sequence[Fields]) -> str:
    return to_json(value).decode()


def _row(transition: Projection) -> Fields:
    """Every column that the workflow writes; gauges and `dismissed_at` have other writers."""
    request, outcome = transition.request, transition.outcome
    row = {
        "op_id": request.op_id,
        "kind": request.wanted.kind.value,
        "node_id": request.node_id,
        "node_name": request.node_name,
        "backend": request.wanted.backend,
        "family": request.wanted.family,
        "batch_id": request.batch_id,
        "request": request.model_dump(mode="json"),
        "workflow_id": transition.workflow_id,
        "run_id": transition.run_id,
        "at": transition.at,
        "seq": transition.seq,
        "state": transition.state.value,
        "reason": transition.reason.value if transition.reason else None,
        "detail": transition.detail,
        "until": transition.until,
        "attempt": transition.attempt,
        "cancelled_by": transition.cancelled_by,
        "before": _stored(outcome.before if outcome else None),
        "after": _stored(outcome.after if outcome else None),
        "changed": outcome.changed if outcome else None,
        "signed_outcome": (outcome.signed or None) if outcome else None,
        "bytes_fetched": outcome.bytes_fetched if outcome else 0,
        "bytes_reused": outcome.bytes_reused if outcome else 0,
        "created_at": request.created_at,
        "dispatched_at": transition.dispatched_at,
        "ended_at": transition.ended_at,
    }
    return {column: storable(value) for column, value in row.items()}


def _stored(installed: Installed | None) -> dict[str, Any] | None:
    return installed.model_dump(mode="json", exclude_defaults=True) if installed else None

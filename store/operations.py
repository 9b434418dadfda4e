"""The projection of the operations: written forwards only, each change together with its event."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Boolean, ColumnElement, Select, TextClause, literal_column, or_, select, text, true

from contracts.messages import Installed, Progress
from contracts.operation_http import OperationDetail, OperationEvent, OperationView
from contracts.temporal import OperationRequest, Projection
from domain.operation import ENDED, OPEN, Reason, State
from store.clock import Clock, utc_now
from store.database import EVENT_LOCK, Database
from store.events import CHANNEL, NEWEST_EVENT
from store.models import NODE_BOUND, UNSUCCESSFUL, OperationEventRow, OperationRow, one_of
from store.text import storable
from store.views import event_view, operation_view

Fields = dict[str, Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""when the API writes a row: before anything the workflow can write"""


def _state_in(states: Iterable[State]) -> ColumnElement[bool]:
    """Literal, so that the planner recognises the condition of a partial index."""
    return literal_column(one_of("operations.state", states), Boolean)


IS_OPEN = _state_in(OPEN)
_HAS_ENDED = _state_in(ENDED)
_IS_NODE_BOUND = _state_in(NODE_BOUND)
IS_UNSUCCESSFUL = _state_in(UNSUCCESSFUL) & OperationRow.dismissed_at.is_(None)

_GAUGES = text(f"""
    UPDATE operations
    SET phase = tick.phase, bytes_done = tick.bytes_done, bytes_total = tick.bytes_total,
        percentage = tick.percentage, rate = tick.rate, eta_s = tick.eta_s,
        progressed_at = CASE
            WHEN (operations.phase, operations.bytes_done) IS DISTINCT FROM (tick.phase, tick.bytes_done)
            THEN :now ELSE operations.progressed_at END
    FROM jsonb_to_recordset(CAST(:ticks AS jsonb)) AS tick (
        op_id text, phase text, bytes_done bigint, bytes_total bigint,
        percentage double precision, rate double precision, eta_s double precision)
    WHERE operations.op_id IN (
        SELECT op_id FROM operations
        WHERE op_id = ANY(:op_ids) AND {one_of("state", OPEN)}
        FOR NO KEY UPDATE SKIP LOCKED)
    AND operations.op_id = tick.op_id
""")  # noqa: S608 - the words come from the domain
"""A gauge is safe to lose: a row that is being written is left for the next second."""

_GAUGE_FIELDS = {"op_id", "phase", "bytes_done", "bytes_total", "percentage", "rate", "eta_s"}

_ROW_COLUMNS = (
    *("op_id", "kind", "node_id", "node_name", "backend", "family", "batch_id", "request", "workflow_id", "run_id"),
    *("at", "seq", "state", "reason", "detail", "until", "attempt", "cancelled_by", "before", "after", "changed"),
    *("bytes_fetched", "bytes_reused", "created_at", "dispatched_at", "ended_at"),
)
"""what the workflow owns; gauges and `dismissed_at` have other writers"""
_EVENT_COLUMNS = (
    *("op_id", "node_id", "node_name", "backend", "kind", "batch_id", "run_id"),
    *("at", "seq", "state", "reason", "detail", "until", "attempt"),
)


def _written(on_conflict: str) -> TextClause:
    """Rows and their events in one statement. Events get their numbers under one lock, taken after the last row was
    written and given back by the commit: the order of numbers is the order of commits."""
    columns, told = ", ".join(_ROW_COLUMNS), ", ".join(_EVENT_COLUMNS)
    return text(f"""
        WITH moved AS (
            INSERT INTO operations ({columns})
            SELECT {columns} FROM jsonb_populate_recordset(NULL::operations, CAST(:rows AS jsonb))
            ON CONFLICT {on_conflict}
            RETURNING operations.op_id),
        counted AS (SELECT count(*) AS rows FROM moved),
        turn AS MATERIALIZED (
            SELECT pg_advisory_xact_lock(:lock)::text AS mine, pg_notify(:channel, '') FROM counted WHERE rows > 0)
        INSERT INTO operation_events ({told})
        SELECT {", ".join(f"event.{column}" for column in _EVENT_COLUMNS)}
        FROM turn CROSS JOIN moved
        JOIN jsonb_populate_recordset(NULL::operation_events, CAST(:events AS jsonb)) AS event USING (op_id)
        WHERE turn.mine IS NOT NULL
        ORDER BY event.at, event.seq
        ON CONFLICT DO NOTHING
        RETURNING op_id
    """)  # noqa: S608 - the columns are ours


_FIRST = _written("DO NOTHING")
_FORWARDS = _written(f"""(op_id)
    DO UPDATE SET {", ".join(f"{column} = excluded.{column}" for column in _ROW_COLUMNS if column != "op_id")}
    WHERE CASE WHEN operations.run_id = excluded.run_id
        THEN operations.seq < excluded.seq
        ELSE operations.at < excluded.at END""")
"""A full row that only moves forwards. Within a run its numbers tell: one that a worker's death makes play a step again
plays it at another time. A run that was reset begins with old numbers, so between runs the time tells."""


@dataclass(frozen=True)
class Listing:
    """Operations as they were at one moment; every later change has an event with a higher number."""

    operations: Sequence[OperationView]
    last_event_id: int


class OperationTable:
    """The tables `operations` and `operation_events`."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def find(self, op_id: str) -> OperationView | None:
        found = await self._fetch(select(OperationRow).where(OperationRow.op_id == op_id))
        return found[0] if found else None

    async def detail(self, op_id: str) -> OperationDetail | None:
        """The row and its events from one statement: who goes on after the last of them misses nothing."""
        row, event = OperationRow, OperationEventRow
        story = select(row, event).outerjoin(event, event.op_id == row.op_id).where(row.op_id == op_id)
        now = self._clock()
        async with self._database.reading() as session:
            found = (await session.execute(story.order_by(event.id))).all()
        if not found:
            return None
        timeline = [event_view(each) for _, each in found if each is not None]
        return OperationDetail(**{**dict(operation_view(found[0][0], now)), "timeline": timeline})

    async def request(self, op_id: str) -> OperationRequest | None:
        """What was admitted, whole: for a retry, and to write the end of a run that was taken away."""
        async with self._database.reading() as session:
            stored = await session.scalar(select(OperationRow.request).where(OperationRow.op_id == op_id))
        return OperationRequest.model_validate(stored) if stored else None

    async def insert_queued(self, first: Projection) -> bool:
        """The API's write: only if nobody wrote before, and older than anything the workflow writes."""
        row = _row(first)
        return await self._write(_FIRST, [{**row, "at": EPOCH}], [{**row, "at": first.request.created_at}])

    async def record(self, *transitions: Projection) -> bool:
        """The workflow's write: the row as it is now and every event; False if it was known already."""
        changes = [_row(each) for each in transitions]
        latest = {change["op_id"]: change for change in changes}
        return await self._write(_FORWARDS, list(latest.values()), changes)

    async def open_operations(self) -> Sequence[OperationView]:
        return await self._fetch(select(OperationRow).where(IS_OPEN).order_by(OperationRow.created_at))

    async def ended_among(self, op_ids: Sequence[str]) -> Sequence[OperationView]:
        """Of these, the ones that have ended: a node that still works on one has to be told."""
        return await self._fetch(select(OperationRow).where(OperationRow.op_id.in_(op_ids), _HAS_ENDED))

    async def waiting_for(self, node_ids: Sequence[str]) -> Sequence[OperationView]:
        """What goes on once one of these nodes is heard: waits for an absent node, and cancels to deliver."""
        away = or_(
            OperationRow.reason.in_([Reason.NODE_AWAY, Reason.NATS_DOWN]), OperationRow.state == State.CANCELLING
        )
        bound = select(OperationRow).where(OperationRow.node_id.in_(node_ids), _IS_NODE_BOUND, away)
        return await self._fetch(bound.order_by(OperationRow.created_at))

    async def held(self, *, limit: int = 500) -> Sequence[OperationView]:
        """What an operator holds back, oldest first."""
        waiting = select(OperationRow).where(OperationRow.state == State.WAITING, OperationRow.reason == Reason.HELD)
        return await self._fetch(waiting.order_by(OperationRow.created_at).limit(limit))

    async def listing(
        self,
        *,
        live: bool = True,
        node: str | None = None,
        state: State | None = None,
        batch: str | None = None,
        limit: int = 500,
    ) -> "Listing":
        """Newest first. Live: open ones, and those that ended badly until somebody dismisses them."""
        conditions: list[ColumnElement[bool]] = []
        if live:
            conditions.append(or_(IS_OPEN, IS_UNSUCCESSFUL))
        if node is not None:
            conditions.append(or_(OperationRow.node_id == node, OperationRow.node_name == node))
        if state is not None:
            conditions.append(OperationRow.state == state)
        if batch is not None:
            conditions.append(OperationRow.batch_id == batch)
        newest = (OperationRow.created_at.desc(), OperationRow.op_id.desc())
        wanted = select(OperationRow).where(true(), *conditions).order_by(*newest).limit(limit)
        now = self._clock()
        async with self._database.snapshot() as session:
            last_event_id = await session.scalar(NEWEST_EVENT) or 0
            return Listing([operation_view(row, now) for row in await session.scalars(wanted)], last_event_id)

    async def timeline(self, op_id: str) -> Sequence[OperationEvent]:
        story = select(OperationEventRow).where(OperationEventRow.op_id == op_id).order_by(OperationEventRow.id)
        async with self._database.session() as session:
            return [event_view(row) for row in await session.scalars(story)]

    async def write_gauges(self, ticks: Sequence[Progress]) -> None:
        """The last value of each gauge, in one UPDATE; an operation that ended is left alone."""
        latest = {tick.op_id: tick.model_dump(mode="json", include=_GAUGE_FIELDS) for tick in ticks}
        values = {"now": self._clock(), "ticks": json.dumps(list(latest.values())), "op_ids": list(latest)}
        async with self._database.session() as session:
            await session.execute(_GAUGES, values)

    async def standing(self, op_ids: Sequence[str]) -> dict[str, tuple[State, Reason | None]]:
        """How these stand, and nothing more: asked often, by those who wait for one to end."""
        wanted = select(OperationRow.op_id, OperationRow.state, OperationRow.reason)
        async with self._database.reading() as session:
            found = await session.execute(wanted.where(OperationRow.op_id.in_(op_ids)))
            return {op_id: (State(state), Reason(reason) if reason else None) for op_id, state, reason in found}

    async def _write(self, statement: TextClause, rows: Sequence[Fields], events: Sequence[Fields]) -> bool:
        """One statement, so one transaction: a row and its events are there together or not at all."""
        told = [{column: event[column] for column in _EVENT_COLUMNS} for event in events]
        values = {"lock": EVENT_LOCK, "channel": CHANNEL, "rows": _json(rows), "events": _json(told)}
        async with self._database.autocommit() as connection:
            return (await connection.execute(statement, values)).first() is not None

    async def _fetch(self, statement: Select[OperationRow]) -> Sequence[OperationView]:
        now = self._clock()
        async with self._database.reading() as session:
            return [operation_view(row, now) for row in await session.scalars(statement)]


def _json(value: Sequence[Fields]) -> str:
    return to_json(value).decode()


def _row(transition: Projection) -> Fields:
    """Every column the workflow owns; gauges and `dismissed_at` have other writers."""
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
        "bytes_fetched": outcome.bytes_fetched if outcome else 0,
        "bytes_reused": outcome.bytes_reused if outcome else 0,
        "created_at": request.created_at,
        "dispatched_at": transition.dispatched_at,
        "ended_at": transition.ended_at,
    }
    return {column: storable(value) for column, value in row.items()}


def _stored(installed: Installed | None) -> dict[str, Any] | None:
    return installed.model_dump(mode="json", exclude_defaults=True) if installed else None

"""Batches: the request, its members, and the state of each member."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, exists, func, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.contracts.temporal.batches import BatchInput, BatchMember, CloseBatch, member_op_id
from nodesmith.domain.batch import (
    ENDED_BATCHES,
    WAITING_FOR_TURN,
    Batch,
    BatchState,
    Member,
    MemberVerdict,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Gauge, Reason, State
from nodesmith.store.cursors import cursor_after, read_moment
from nodesmith.store.database import Database
from nodesmith.store.operations.batch_failures import failures_of
from nodesmith.store.tables.core import BatchMemberRow, BatchRow, OperationRow

_BY_CREATION = "batches by creation"
_WITHOUT_NODES = {"targets", "left_out", "carried"}
_BEFORE_ANY_RUN = datetime.fromtimestamp(0, UTC)
"""`created_at` uses the API's clock and later writes Temporal's, which may differ by minutes"""
_PROVISIONAL = (MemberVerdict.NOT_STARTED.value, MemberVerdict.UNKNOWN.value)
_VERDICT = case(
    (BatchMemberRow.verdict.in_(_PROVISIONAL), func.coalesce(OperationRow.state, BatchMemberRow.verdict)),
    else_=BatchMemberRow.verdict,
)
"""an existing operation was started, even if a repair that could not see it yet wrote another verdict"""
_STATE = func.coalesce(_VERDICT, OperationRow.state, WAITING_FOR_TURN)


class Batches:
    """The tables `batches` and `batch_members`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, batch: BatchInput) -> None:
        """Insert the batch with all its members; a second call changes nothing."""
        planned = [_planned(batch.batch_id, each.node_id, each.node_name) for each in batch.targets]
        left_out = [_member(batch.batch_id, each) for each in batch.left_out]
        async with self._database.session() as session:
            await session.execute(insert(BatchRow).values(_row(batch)).on_conflict_do_nothing())
            for some in _chunks([*planned, *left_out]):
                await session.execute(insert(BatchMemberRow).values(some).on_conflict_do_nothing())

    async def note(self, batch_id: str, members: Sequence[BatchMember]) -> None:
        """Update members that joined another operation than planned, or have a verdict instead of one."""
        async with self._database.session() as session:
            for some in _chunks([_member(batch_id, each) for each in members]):
                first = insert(BatchMemberRow).values(some)
                changes = {name: first.excluded[name] for name in ("op_id", "joined", "verdict", "detail")}
                await session.execute(first.on_conflict_do_update(index_elements=["batch_id", "node_id"], set_=changes))

    async def close(self, close: CloseBatch) -> None:
        """Write the state of the batch: never an older one, and never after an end. An end is accepted at any time."""
        await self.note(close.batch_id, close.members)
        changes: dict[str, Any] = {"state": close.state.value, "detail": close.detail, "at": close.at}
        if close.state in ENDED_BATCHES:
            changes["ended_at"] = close.at
        if close.state is BatchState.STOPPED:
            changes["begins_nothing"] = True
        mine = update(BatchRow).where(BatchRow.batch_id == close.batch_id, _may_move_to(close.state))
        if close.state not in ENDED_BATCHES:
            mine = mine.where(BatchRow.at <= close.at)
        async with self._database.session() as session:
            await session.execute(mine.values(changes))

    async def find(self, batch_id: str) -> Batch | None:
        async with self._database.snapshot() as session:
            return await _find(session, batch_id)

    async def detail(self, batch_id: str) -> Batch | None:
        """The batch with all its members, from one snapshot."""
        async with self._database.snapshot() as session:
            found = await _find(session, batch_id)
            return replace(found, members=await _members(session, batch_id)) if found else None

    async def failed_attempts(self, op_ids: Sequence[str]) -> dict[str, int]:
        """Operation -> number of failed attempts, if any; `attempt` is the number of the current one."""
        row = OperationRow
        counted = select(row.op_id, row.attempt).where(row.op_id.in_(op_ids), row.attempt > 1)
        async with self._database.reading() as session:
            return {op_id: attempt - 1 for op_id, attempt in await session.execute(counted)}

    async def open_ids(self) -> set[str]:
        async with self._database.reading() as session:
            return set(await session.scalars(select(BatchRow.batch_id).where(BatchRow.ended_at.is_(None))))

    async def known_among(self, batch_ids: Sequence[str]) -> set[str]:
        """The ones of these batches that have a row."""
        known = select(BatchRow.batch_id).where(BatchRow.batch_id.in_(batch_ids))
        async with self._database.reading() as session:
            return set(await session.scalars(known))

    async def has_ended(self, batch_id: str) -> bool:
        async with self._database.reading() as session:
            ended_at = select(BatchRow.ended_at).where(BatchRow.batch_id == batch_id)
            return await session.scalar(ended_at) is not None

    async def end_outside(self, batch_id: str, *, detail: str, at: datetime) -> bool:
        """End a batch whose run is gone, and set the verdict of members without an operation; False if it had ended."""
        is_open = (BatchRow.batch_id == batch_id, BatchRow.ended_at.is_(None))
        was_cancelled = BatchRow.state == BatchState.CANCELLING.value
        state = case((was_cancelled, BatchState.CANCELLED.value), else_=BatchState.STOPPED.value)
        why = case((was_cancelled, BatchRow.detail), else_=detail)
        ends = {"state": state, "detail": why, "at": at, "ended_at": at}
        begun = exists().where(OperationRow.op_id == BatchMemberRow.op_id)
        idle = (BatchMemberRow.batch_id == batch_id, BatchMemberRow.verdict.is_(None), ~begun)
        verdict = {"verdict": MemberVerdict.NOT_STARTED.value, "detail": f"not started: the batch {detail}"}
        async with self._database.session() as session:
            if not (await session.scalars(update(BatchRow).where(*is_open).values(ends).returning(BatchRow.at))).all():
                return False
            await session.execute(update(BatchMemberRow).where(*idle).values(verdict))
        return True

    async def request(self, batch_id: str) -> BatchInput | None:
        """The request of the batch, without its nodes."""
        async with self._database.session() as session:
            stored = await session.scalar(select(BatchRow.request).where(BatchRow.batch_id == batch_id))
        return BatchInput.model_validate({**stored, "targets": ()}) if stored else None

    async def listing(
        self, *, open_only: bool = False, cursor: str = "", limit: int = 100
    ) -> tuple[list[Batch], str | None]:
        """One page of batches, newest first, and the cursor of the next page."""
        place = (BatchRow.created_at, BatchRow.batch_id)
        newest = select(BatchRow).order_by(*(column.desc() for column in place)).limit(limit + 1)
        if open_only:
            newest = newest.where(BatchRow.ended_at.is_(None))
        if cursor:
            newest = newest.where(tuple_(*place) < tuple_(*read_moment(cursor, _BY_CREATION)))
        found = await self._fetch(newest)
        shown = found[:limit]
        more = len(found) > limit
        return shown, cursor_after(_BY_CREATION, shown[-1].created_at, shown[-1].batch_id) if more else None

    async def members(self, batch_id: str) -> Sequence[Member]:
        """All members of the batch, by node name, with the state of their operations."""
        async with self._database.reading() as session:
            return await _members(session, batch_id)

    async def _fetch(self, wanted: Select[BatchRow]) -> list[Batch]:
        async with self._database.snapshot() as session:
            return await _fetch(session, wanted)


async def _find(session: AsyncSession, batch_id: str) -> Batch | None:
    """One batch with its failure causes, which lists omit."""
    found = await _fetch(session, select(BatchRow).where(BatchRow.batch_id == batch_id))
    return replace(found[0], failures=await failures_of(session, batch_id)) if found else None


async def _fetch(session: AsyncSession, wanted: Select[BatchRow]) -> list[Batch]:
    """Read batches with their counts; needs a snapshot, so that the counts match the states."""
    rows = list(await session.scalars(wanted))
    counted = await session.execute(_counts([row.batch_id for row in rows]))
    counts: dict[str, dict[str, int]] = {}
    for batch_id, standing, number in counted:
        counts.setdefault(batch_id, {})[standing] = number
    return [_batch(row, counts.get(row.batch_id, {})) for row in rows]


async def _members(session: AsyncSession, batch_id: str) -> list[Member]:
    wanted = (
        select(BatchMemberRow, OperationRow)
        .outerjoin(OperationRow, OperationRow.op_id == BatchMemberRow.op_id)
        .where(BatchMemberRow.batch_id == batch_id)
        .order_by(BatchMemberRow.node_name)
    )
    return [_member_of(member, operation) for member, operation in await session.execute(wanted)]


def _counts(batch_ids: Sequence[str]) -> Select[str, str, int]:
    return (
        select(BatchMemberRow.batch_id, _STATE, func.count())
        .outerjoin(OperationRow, OperationRow.op_id == BatchMemberRow.op_id)
        .where(BatchMemberRow.batch_id.in_(batch_ids))
        .group_by(BatchMemberRow.batch_id, _STATE)
    )


def _row(batch: BatchInput) -> dict[str, Any]:
    return {
        "batch_id": batch.batch_id,
        "kind": batch.wanted.kind.value,
        "backend": batch.wanted.backend,
        "family": batch.wanted.family,
        "request": batch.model_dump(mode="json", exclude=_WITHOUT_NODES),
        "state": BatchState.RUNNING.value,
        "detail": "",
        "requested_by": batch.requested_by,
        "at": _BEFORE_ANY_RUN,
        "created_at": batch.created_at,
    }


def _planned(batch_id: str, node_id: str, node_name: str) -> dict[str, Any]:
    op_id = member_op_id(batch_id, node_id)
    return _member(batch_id, BatchMember(node_id=node_id, node_name=node_name, op_id=op_id))


def _member(batch_id: str, member: BatchMember) -> dict[str, Any]:
    return {"batch_id": batch_id, **member.model_dump(mode="json")}


def _chunks(rows: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Portions of 1000 rows: PostgreSQL accepts at most 65,535 parameters per statement."""
    return (rows[start : start + 1000] for start in range(0, len(rows), 1000))


def _batch(row: BatchRow, counts: dict[str, int]) -> Batch:
    asked = row.request
    return Batch(
        batch_id=row.batch_id,
        kind=Kind(row.kind),
        backend=row.backend,
        family=row.family,
        version=asked["wanted"].get("version", ""),
        state=BatchState(row.state),
        detail=row.detail,
        max_parallel=asked["max_parallel"],
        max_failures=asked["max_failures"],
        count_attempts=asked.get("count_attempts", False),
        max_attempts=asked.get("limits", {}).get("max_attempts"),
        requested_by=row.requested_by,
        note=asked["note"],
        retry_of=asked["retry_of"],
        created_at=row.created_at,
        ended_at=row.ended_at,
        counts=counts,
    )


def _may_move_to(state: BatchState) -> ColumnElement[bool]:
    """An end is final, except that a stopped batch writes `stopped` again when its last member has ended."""
    return or_(BatchRow.ended_at.is_(None), BatchRow.state == state.value)


def _member_of(member: BatchMemberRow, operation: OperationRow | None) -> Member:
    part = Member(node_id=member.node_id, node_name=member.node_name, op_id=member.op_id, joined=member.joined)
    if operation is None or member.verdict not in (None, *_PROVISIONAL):
        verdict = MemberVerdict(member.verdict) if member.verdict else None
        return replace(part, verdict=verdict, detail=member.detail)
    state, reason = State(operation.state), Reason(operation.reason) if operation.reason else None
    percentage = Gauge(percentage=operation.percentage).during(state).percentage
    return replace(part, operation_state=state, reason=reason, detail=operation.detail, percentage=percentage)

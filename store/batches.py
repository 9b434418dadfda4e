"""Batches: what was asked for, of whom, and what became of each node."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from contracts.batches import (
    ENDED_BATCHES,
    BatchDetail,
    BatchInput,
    BatchState,
    BatchView,
    CloseBatch,
    Member,
    MemberView,
    Verdict,
    member_op_id,
)
from contracts.operation_http import ProgressView
from contracts.words import tell
from domain.operation import Kind, Reason, State
from store.batch_troubles import Troubles, troubles_of
from store.database import Database
from store.models import BatchMemberRow, BatchRow, OperationRow

WAITING_FOR_TURN = "waiting_for_turn"
_WITHOUT_NODES = {"targets", "left_out", "carried"}
_NOT_STARTED = Verdict.NOT_STARTED.value
_VERDICT = case(
    (BatchMemberRow.verdict == _NOT_STARTED, func.coalesce(OperationRow.state, _NOT_STARTED)),
    else_=BatchMemberRow.verdict,
)
"""an operation that is there was started, whatever a repair wrote that did not see it yet"""
_STANDING = func.coalesce(_VERDICT, OperationRow.state, WAITING_FOR_TURN)


class Batches:
    """The tables `batches` and `batch_members`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, batch: BatchInput) -> None:
        """Write it down with all its members; whoever comes second changes nothing."""
        planned = [_planned(batch.batch_id, each.node_id, each.node_name) for each in batch.targets]
        left_out = [_member(batch.batch_id, each) for each in batch.left_out]
        async with self._database.session() as session:
            await session.execute(insert(BatchRow).values(_row(batch)).on_conflict_do_nothing())
            for some in _in_thousands([*planned, *left_out]):
                await session.execute(insert(BatchMemberRow).values(some).on_conflict_do_nothing())

    async def note(self, batch_id: str, members: Sequence[Member]) -> None:
        """Members with another operation than planned, or with a verdict instead of one."""
        async with self._database.session() as session:
            for some in _in_thousands([_member(batch_id, each) for each in members]):
                first = insert(BatchMemberRow).values(some)
                changes = {name: first.excluded[name] for name in ("op_id", "joined", "verdict", "detail")}
                await session.execute(first.on_conflict_do_update(index_elements=["batch_id", "node_id"], set_=changes))

    async def close(self, close: CloseBatch) -> None:
        """The batch's state; never backwards in time, and never out of an end."""
        await self.note(close.batch_id, close.members)
        changes = {"state": close.state.value, "detail": close.detail, "at": close.at}
        if close.state in ENDED_BATCHES:
            changes["ended_at"] = close.at
        mine = update(BatchRow).where(
            BatchRow.batch_id == close.batch_id, BatchRow.at <= close.at, _may_move_to(close.state)
        )
        async with self._database.session() as session:
            await session.execute(mine.values(changes))

    async def find(self, batch_id: str) -> BatchView | None:
        async with self._database.snapshot() as session:
            return await _one_view(session, batch_id)

    async def detail(self, batch_id: str) -> BatchDetail | None:
        """The batch and every node of it, as they were at one moment."""
        async with self._database.snapshot() as session:
            found = await _one_view(session, batch_id)
            members = await _members(session, batch_id) if found else []
        return BatchDetail(**{**dict(found), "members": members}) if found else None

    async def failed_attempts(self, op_ids: Sequence[str]) -> dict[str, int]:
        """Of these operations, those with failed attempts, and how many; `attempt` is the number of the next one."""
        row = OperationRow
        counted = select(row.op_id, row.attempt).where(row.op_id.in_(op_ids), row.attempt > 1)
        async with self._database.reading() as session:
            return {op_id: attempt - 1 for op_id, attempt in await session.execute(counted)}

    async def open_ids(self) -> set[str]:
        async with self._database.reading() as session:
            return set(await session.scalars(select(BatchRow.batch_id).where(BatchRow.ended_at.is_(None))))

    async def has_ended(self, batch_id: str) -> bool:
        async with self._database.reading() as session:
            ended_at = select(BatchRow.ended_at).where(BatchRow.batch_id == batch_id)
            return await session.scalar(ended_at) is not None

    async def end_outside(self, batch_id: str, *, detail: str, at: datetime) -> bool:
        """End a batch whose run is gone, and give a verdict to members without an operation; False if it has ended."""
        is_open = (BatchRow.batch_id == batch_id, BatchRow.ended_at.is_(None))
        ends = {"state": BatchState.STOPPED.value, "detail": detail, "at": at, "ended_at": at}
        begun = exists().where(OperationRow.op_id == BatchMemberRow.op_id)
        idle = (BatchMemberRow.batch_id == batch_id, BatchMemberRow.verdict.is_(None), ~begun)
        verdict = {"verdict": Verdict.NOT_STARTED.value, "detail": f"not started: the batch {detail}"}
        async with self._database.session() as session:
            if not (await session.scalars(update(BatchRow).where(*is_open).values(ends).returning(BatchRow.at))).all():
                return False
            await session.execute(update(BatchMemberRow).where(*idle).values(verdict))
        return True

    async def request(self, batch_id: str) -> BatchInput | None:
        """What was asked for, without the nodes."""
        async with self._database.session() as session:
            stored = await session.scalar(select(BatchRow.request).where(BatchRow.batch_id == batch_id))
        return BatchInput.model_validate({**stored, "targets": ()}) if stored else None

    async def listing(self, *, open_only: bool = False, limit: int = 100) -> Sequence[BatchView]:
        newest = select(BatchRow).order_by(BatchRow.created_at.desc(), BatchRow.batch_id).limit(limit)
        return await self._views(newest.where(BatchRow.ended_at.is_(None)) if open_only else newest)

    async def members(self, batch_id: str) -> Sequence[MemberView]:
        """Every node of the batch, by name, with the state of its operation."""
        async with self._database.reading() as session:
            return await _members(session, batch_id)

    async def _views(self, wanted: Select[BatchRow]) -> list[BatchView]:
        async with self._database.snapshot() as session:
            return await _views(session, wanted)


async def _one_view(session: AsyncSession, batch_id: str) -> BatchView | None:
    """With what went wrong so far; lists do without."""
    found = await _views(session, select(BatchRow).where(BatchRow.batch_id == batch_id))
    return _with_troubles(found[0], await troubles_of(session, batch_id)) if found else None


async def _views(session: AsyncSession, wanted: Select[BatchRow]) -> list[BatchView]:
    """Needs a snapshot: the counts have to fit the state of the batch."""
    rows = list(await session.scalars(wanted))
    counted = await session.execute(_counts([row.batch_id for row in rows]))
    counts: dict[str, dict[str, int]] = {}
    for batch_id, standing, number in counted:
        counts.setdefault(batch_id, {})[standing] = number
    return [_view(row, counts.get(row.batch_id, {})) for row in rows]


async def _members(session: AsyncSession, batch_id: str) -> list[MemberView]:
    wanted = (
        select(BatchMemberRow, OperationRow)
        .outerjoin(OperationRow, OperationRow.op_id == BatchMemberRow.op_id)
        .where(BatchMemberRow.batch_id == batch_id)
        .order_by(BatchMemberRow.node_name)
    )
    return [_member_view(member, operation) for member, operation in await session.execute(wanted)]


def _counts(batch_ids: Sequence[str]) -> Select[str, str, int]:
    return (
        select(BatchMemberRow.batch_id, _STANDING, func.count())
        .outerjoin(OperationRow, OperationRow.op_id == BatchMemberRow.op_id)
        .where(BatchMemberRow.batch_id.in_(batch_ids))
        .group_by(BatchMemberRow.batch_id, _STANDING)
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
        "at": batch.created_at,
        "created_at": batch.created_at,
    }


def _planned(batch_id: str, node_id: str, node_name: str) -> dict[str, Any]:
    op_id = member_op_id(batch_id, node_id)
    return _member(batch_id, Member(node_id=node_id, node_name=node_name, op_id=op_id))


def _member(batch_id: str, member: Member) -> dict[str, Any]:
    return {"batch_id": batch_id, **member.model_dump(mode="json")}


def _in_thousands(rows: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """PostgreSQL takes 65,535 parameters in one statement."""
    return (rows[start : start + 1000] for start in range(0, len(rows), 1000))


def _view(row: BatchRow, counts: dict[str, int]) -> BatchView:
    asked = row.request
    return BatchView(
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
        message=_told(row, counts),
    )


def _with_troubles(view: BatchView, troubles: Troubles) -> BatchView:
    counted = {"failed_attempts": troubles.attempts, "failed_nodes": troubles.nodes, "troubles": troubles.causes}
    message = "; ".join(part for part in (view.message, troubles.told()) if part)
    return view.model_copy(update={**counted, "message": message})


def _may_move_to(state: BatchState) -> ColumnElement[bool]:
    """A stopped batch says so again when its last member has ended; otherwise an end stays as it is."""
    return or_(BatchRow.ended_at.is_(None), BatchRow.state == state.value)


def _told(row: BatchRow, counts: dict[str, int]) -> str:
    """One line: where it stands, why, and how the members are."""
    standing = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in sorted(counts.items()))
    return ": ".join(part for part in (row.state, row.detail, standing) if part)


def _member_view(member: BatchMemberRow, operation: OperationRow | None) -> MemberView:
    view = MemberView(
        node_id=member.node_id,
        node_name=member.node_name,
        op_id=member.op_id,
        joined=member.joined,
        state=member.verdict or WAITING_FOR_TURN,
        detail=member.detail,
    )
    if operation is None or member.verdict not in (None, _NOT_STARTED):
        return view
    state, reason = State(operation.state), Reason(operation.reason) if operation.reason else None
    told = tell(state, reason, operation.detail)
    percentage = ProgressView(percentage=operation.percentage).during(state).percentage
    return view.model_copy(update={"state": state.value, "reason": reason, "detail": told, "percentage": percentage})

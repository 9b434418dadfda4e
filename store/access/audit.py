"""The audit trail: who changed what, kept for 400 days."""

from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, delete, func, insert, or_, select, update

from nodesmith.domain.audit_change import AuditChange, ChangeState, RecordedChange
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.cursors import cursor_after, read_number
from nodesmith.store.database import Database
from nodesmith.store.tables.access import AuditRow
from nodesmith.store.text import storable

PURGE_LIMIT = 5_000
_NEWEST_FIRST = "audit entries, newest first"
_BEGIN = insert(AuditRow).returning(AuditRow.id)
_COMPLETE = (
    update(AuditRow)
    .where(AuditRow.id == bindparam("entry"))
    .where(func.set_config("synchronous_commit", "off", True) == "off")  # noqa: FBT003 - for this statement only
)
"""Does not wait for the disk: after a power cut the earlier row remains, whose outcome is `unknown`."""


class AuditTrail:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def begin(self, change: AuditChange) -> int:
        """Write the entry before the change is made, so that it survives a crash; returns its id."""
        values = {"at": self._clock(), "actor": change.actor, "action": change.action, **_columns(change)}
        async with self._database.autocommit() as connection:
            return (await connection.execute(_BEGIN, {**values, "outcome": ChangeState.UNKNOWN})).scalar_one()

    async def complete(self, entry: int, change: AuditChange) -> None:
        """Write the result after the change was made."""
        async with self._database.autocommit() as connection:
            await connection.execute(_COMPLETE, {"entry": entry, **_columns(change), "outcome": ChangeState.DONE})

    async def forget(self, entry: int) -> None:
        """Delete the entry of a change that was refused."""
        async with self._database.autocommit() as connection:
            await connection.execute(delete(AuditRow).where(AuditRow.id == entry))

    async def page(
        self,
        *,
        actor: str | None = None,
        target: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str = "",
        limit: int = 100,
    ) -> tuple[list[RecordedChange], str | None]:
        """Matching entries, the newest first, and the cursor of the next page."""
        row = AuditRow
        wanted = {row.actor: actor, row.action: action}
        found: Select[AuditRow] = select(row).where(
            *(column == value for column, value in wanted.items() if value is not None)
        )
        if target is not None:
            found = found.where(or_(row.target == target, row.target_id == target))
        if since is not None:
            found = found.where(row.at >= since)
        if until is not None:
            found = found.where(row.at < until)
        if cursor:
            found = found.where(row.id < read_number(cursor, _NEWEST_FIRST))
        async with self._database.session() as session:
            entries = [
                _recorded(each) for each in await session.scalars(found.order_by(row.id.desc()).limit(limit + 1))
            ]
        shown = entries[:limit]
        return shown, cursor_after(_NEWEST_FIRST, shown[-1].id) if len(entries) > limit else None

    async def purge(self, before: datetime) -> int:
        """Delete one portion of the older entries; returns how many."""
        row = AuditRow
        old = select(row.id).where(row.at < before).order_by(row.at).limit(PURGE_LIMIT)
        async with self._database.session() as session:
            gone = await session.scalars(delete(row).where(row.id.in_(old)).returning(row.id))
            return len(gone.all())


def _columns(change: AuditChange) -> dict[str, Any]:
    columns: dict[str, Any] = storable(
        {
            "target": change.target,
            "target_id": change.target_id,
            "before": change.before,
            "after": change.after,
            "reason": change.reason,
        }
    )
    return columns


def _recorded(row: AuditRow) -> RecordedChange:
    return RecordedChange(
        id=row.id,
        at=row.at,
        actor=row.actor,
        action=row.action,
        target=row.target,
        target_id=row.target_id,
        before=row.before,
        after=row.after,
        reason=row.reason,
        outcome=ChangeState(row.outcome),
    )

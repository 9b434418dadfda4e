"""The audit trail: who changed what, kept for 400 days."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Select, bindparam, delete, func, insert, or_, select, update

from contracts.access import AuditEntry
from domain.change import Change, Known
from store.clock import Clock, utc_now
from store.database import Database
from store.models_access import AuditRow
from store.text import storable

PURGED_AT_ONCE = 5_000
_BEGIN = insert(AuditRow).returning(AuditRow.id)
_COMPLETE = (
    update(AuditRow)
    .where(AuditRow.id == bindparam("entry"))
    .where(func.set_config("synchronous_commit", "off", True) == "off")  # noqa: FBT003 - for this statement only
)
"""Not waited for on disk: what a power cut takes of it leaves the row that was, which says `unknown`."""


class AuditTrail:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def begin(self, change: Change) -> int:
        """Before it is made: from here on there is a row, whoever dies. Returns its number."""
        values = {"at": self._clock(), "actor": change.actor, "action": change.action, **_told(change)}
        async with self._database.autocommit() as connection:
            return (await connection.execute(_BEGIN, {**values, "outcome": Known.UNKNOWN})).scalar_one()

    async def complete(self, entry: int, change: Change) -> None:
        """After it was made: what it became."""
        async with self._database.autocommit() as connection:
            await connection.execute(_COMPLETE, {"entry": entry, **_told(change), "outcome": Known.DONE})

    async def forget(self, entry: int) -> None:
        """It was refused, and nothing changed."""
        async with self._database.autocommit() as connection:
            await connection.execute(delete(AuditRow).where(AuditRow.id == entry))

    async def entries(
        self,
        *,
        actor: str | None = None,
        target: str | None = None,
        action: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before_id: int | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """The newest first."""
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
        if before_id is not None:
            found = found.where(row.id < before_id)
        async with self._database.session() as session:
            return [_entry(each) for each in await session.scalars(found.order_by(row.id.desc()).limit(limit))]

    async def purge(self, before: datetime) -> int:
        """Forget what is older, some at a time; how much that was."""
        row = AuditRow
        old = select(row.id).where(row.at < before).order_by(row.at).limit(PURGED_AT_ONCE)
        async with self._database.session() as session:
            gone = await session.scalars(delete(row).where(row.id.in_(old)).returning(row.id))
            return len(gone.all())


def _told(change: Change) -> dict[str, Any]:
    told: dict[str, Any] = storable(
        {
            "target": change.target,
            "target_id": change.target_id,
            "before": change.before,
            "after": change.after,
            "reason": change.reason,
        }
    )
    return told


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        actor=row.actor,
        action=row.action,
        target=row.target,
        target_id=row.target_id,
        before=row.before,
        after=row.after,
        reason=row.reason,
        outcome=Known(row.outcome),
    )

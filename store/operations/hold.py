"""The hold, which stops all operations that were not dispatched yet."""

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from nodesmith.domain.hold import Hold
from nodesmith.store.database import Database
from nodesmith.store.tables.core import HoldRow

_IN_FORCE = select(HoldRow.reason, HoldRow.held_by, HoldRow.held_at).where(HoldRow.released_at.is_(None))


class Holds:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def in_force(self) -> Hold | None:
        async with self._database.autocommit() as connection:
            row = (await connection.execute(_IN_FORCE)).first()
        return Hold(row.reason, row.held_by, row.held_at) if row else None

    async def hold(self, *, reason: str, by: str, now: datetime) -> bool:
        """Set the hold; False when one is in force, whose reason stays."""
        first = insert(HoldRow).values(reason=reason, held_by=by, held_at=now).on_conflict_do_nothing()
        async with self._database.session() as session:
            return await session.scalar(first.returning(HoldRow.id)) is not None

    async def release(self, *, by: str, now: datetime) -> bool:
        held = update(HoldRow).where(HoldRow.released_at.is_(None)).values(released_by=by, released_at=now)
        async with self._database.session() as session:
            return await session.scalar(held.returning(HoldRow.id)) is not None

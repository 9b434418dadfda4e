"""`Idempotency-Key`: the same key of the same caller is the same operation."""

from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from store.database import Database
from store.models import IdempotencyKeyRow

REMEMBERED_FOR = timedelta(days=7)


class IdempotencyKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, actor: str, key: str) -> tuple[str, str] | None:
        """The intent and the op_id that came with this key before."""
        row = IdempotencyKeyRow
        statement = select(row.intent, row.op_id).where(row.actor == actor, row.key == key)
        async with self._database.session() as session:
            found = (await session.execute(statement)).one_or_none()
        return (found.intent, found.op_id) if found else None

    async def remember(self, actor: str, key: str, intent: str, op_id: str) -> None:
        """The first to come wins; keys older than a week are forgotten on the way."""
        row = IdempotencyKeyRow
        first = insert(row).values(actor=actor, key=key, intent=intent, op_id=op_id).on_conflict_do_nothing()
        async with self._database.session() as session:
            await session.execute(delete(row).where(row.created_at < func.now() - REMEMBERED_FOR))
            await session.execute(first)

"""Idempotency keys: the same key of the same caller identifies the same request."""

from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from nodesmith.domain.idempotency import KeyClaim, StoredAnswer
from nodesmith.store.database import Database
from nodesmith.store.tables.core import IdempotencyKeyRow

KEY_LIFETIME = timedelta(days=7)
KEY_EXPIRED = IdempotencyKeyRow.created_at < func.now() - KEY_LIFETIME


class IdempotencyKeys:
    """The table `idempotency_keys`, unique on (actor, key)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, actor: str, key: str) -> KeyClaim | None:
        row = IdempotencyKeyRow
        known = select(row).where(row.actor == actor, row.key == key, ~KEY_EXPIRED)
        async with self._database.reading() as session:
            found = await session.scalar(known)
        return _claim(found) if found else None

    async def claim(self, actor: str, key: str, *, digest: str, op_id: str) -> KeyClaim:
        """Insert the key, or return its existing claim; an expired key is replaced."""
        while True:
            if await self._insert(actor, key, digest, op_id):
                return KeyClaim(digest, op_id, is_new=True)
            if (known := await self.find(actor, key)) is not None:
                return known

    async def note(self, actor: str, key: str, *, op_id: str, job_id: str) -> None:
        """Record the job that the request of this id started."""
        row = IdempotencyKeyRow
        ours = update(row).where(row.actor == actor, row.key == key, row.op_id == op_id, row.job_id.is_(None))
        async with self._database.session() as session:
            await session.execute(ours.values(job_id=job_id))

    async def answer(self, actor: str, key: str, *, op_id: str, answer: StoredAnswer) -> None:
        """Store the answer to the request of this id; the first answer stays."""
        row = IdempotencyKeyRow
        ours = update(row).where(row.actor == actor, row.key == key, row.op_id == op_id, row.status.is_(None))
        async with self._database.session() as session:
            await session.execute(ours.values(status=answer.status, answer=answer.body, location=answer.location))

    async def withdraw(self, actor: str, key: str, *, op_id: str) -> None:
        """Delete a claim without a job or an answer."""
        row = IdempotencyKeyRow
        unused = (row.job_id.is_(None), row.status.is_(None))
        ours = delete(row).where(row.actor == actor, row.key == key, row.op_id == op_id, *unused)
        async with self._database.session() as session:
            await session.execute(ours)

    async def _insert(self, actor: str, key: str, digest: str, op_id: str) -> bool:
        row = IdempotencyKeyRow
        first = insert(row).values(actor=actor, key=key, digest=digest, op_id=op_id)
        empty = {"job_id": None, "status": None, "answer": None, "location": None}
        renewed = {"digest": digest, "op_id": op_id, **empty, "created_at": func.now()}
        ours = first.on_conflict_do_update(index_elements=["actor", "key"], set_=renewed, where=KEY_EXPIRED)
        async with self._database.session() as session:
            return (await session.scalar(ours.returning(row.op_id))) is not None


def _claim(row: IdempotencyKeyRow) -> KeyClaim:
    answer = None if row.status is None else StoredAnswer(row.status, row.answer, row.location)
    return KeyClaim(row.digest, row.op_id, row.job_id, answer)

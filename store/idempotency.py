"""`Idempotency-Key`: the same key of the same caller is the same request."""

from datetime import timedelta

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert

from domain.idempotency import Claim
from store.database import Database
from store.models import IdempotencyKeyRow

REMEMBERED_FOR = timedelta(days=7)
KEY_EXPIRED = IdempotencyKeyRow.created_at < func.now() - REMEMBERED_FOR


class IdempotencyKeys:
    """The table `idempotency_keys`, unique on (actor, key)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, actor: str, key: str) -> Claim | None:
        row = IdempotencyKeyRow
        known = select(row.digest, row.op_id, row.job_id).where(row.actor == actor, row.key == key, ~KEY_EXPIRED)
        async with self._database.session() as session:
            found = (await session.execute(known)).one_or_none()
        return Claim(found.digest, found.op_id, found.job_id) if found else None

    async def claim(self, actor: str, key: str, *, digest: str, op_id: str) -> Claim:
        """Insert the key, or return what it stands for already; an expired one is replaced."""
        while True:
            if await self._insert(actor, key, digest, op_id):
                return Claim(digest, op_id, is_new=True)
            if (known := await self.find(actor, key)) is not None:
                return known

    async def note(self, actor: str, key: str, *, op_id: str, job_id: str) -> None:
        """The request that this id was reserved for was started, as that job."""
        row = IdempotencyKeyRow
        ours = update(row).where(row.actor == actor, row.key == key, row.op_id == op_id, row.job_id.is_(None))
        async with self._database.session() as session:
            await session.execute(ours.values(job_id=job_id))

    async def _insert(self, actor: str, key: str, digest: str, op_id: str) -> bool:
        row = IdempotencyKeyRow
        first = insert(row).values(actor=actor, key=key, digest=digest, op_id=op_id)
        renewed = {"digest": digest, "op_id": op_id, "job_id": None, "created_at": func.now()}
        ours = first.on_conflict_do_update(index_elements=["actor", "key"], set_=renewed, where=KEY_EXPIRED)
        async with self._database.session() as session:
            return (await session.scalar(ours.returning(row.op_id))) is not None

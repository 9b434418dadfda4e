"""The credentials for NATS that nodes were given, and those that were taken back."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from domain.node import NatsCredential
from store.database import Database
from store.models import NodeRow
from store.models_access import NatsCredentialRow

_TELLING = 7_361_903
"""advisory lock: who tells the server, alone, so that an older list cannot overtake a newer one"""


class Voices:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def give(self, node_id: str, credential: NatsCredential, *, now: datetime) -> bool:
        """Write down before it is handed out; False when the node may have none (any more).

        The lock on the node makes a removal at the same moment wait, or us see it.
        """
        row = NatsCredentialRow
        approved = select(NodeRow.id).where(NodeRow.id == node_id, NodeRow.approved_at.is_not(None))
        given = insert(row).values(user=credential.user, node_id=node_id, expires_at=credential.expires_at)
        async with self._database.session() as session:
            if await session.scalar(approved.with_for_update(read=True)) is None:
                return False
            await session.execute(delete(row).where(row.node_id == node_id, row.expires_at <= now))
            await session.execute(given)
            return True

    @asynccontextmanager
    async def revoked(self, now: datetime) -> AsyncIterator[Mapping[str, datetime]]:
        """Public key -> when it ends by itself, of all that were taken back; nobody else tells the server meanwhile."""
        row = NatsCredentialRow
        is_revoked = row.revoked_at.is_not(None)
        async with self._database.session() as session:
            await session.execute(select(func.pg_advisory_xact_lock(_TELLING)))
            await session.execute(delete(row).where(is_revoked, row.expires_at <= now))
            found = await session.execute(select(row.user, row.expires_at).where(is_revoked))
            yield {each.user: each.expires_at for each in found}


async def take_back(session: AsyncSession, node_id: str, now: datetime) -> None:
    """In the transaction that removes the node or resets its credential."""
    row = NatsCredentialRow
    await session.execute(update(row).where(row.node_id == node_id, row.revoked_at.is_(None)).values(revoked_at=now))

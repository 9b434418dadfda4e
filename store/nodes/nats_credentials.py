"""The NATS credentials of the nodes, issued and revoked."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.domain.errors import IdentityInUse
from nodesmith.domain.node import NatsCredential
from nodesmith.store.database import Database
from nodesmith.store.tables.access import NatsCredentialRow
from nodesmith.store.tables.core import NodeRow

_UPDATE_LOCK = 7_361_903
"""advisory lock: one process at a time updates the server, so that an older list cannot overwrite a newer one"""


class NatsCredentials:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def issue(self, node_id: str, credential: NatsCredential, *, now: datetime) -> bool:
        """Record a credential before it is sent to the node; False when the node is not approved or was removed.

        The lock on the node serialises this with a removal. An agent presents the same key at each renewal; a revoked
        key, or the key of another node, is refused.
        """
        row = NatsCredentialRow
        approved = select(NodeRow.id).where(NodeRow.id == node_id, NodeRow.approved_at.is_not(None))
        first = insert(row).values(user=credential.user, node_id=node_id, expires_at=credential.expires_at)
        given = first.on_conflict_do_update(
            index_elements=[row.user],
            set_={"expires_at": func.greatest(row.expires_at, first.excluded.expires_at)},
            where=(row.node_id == node_id) & row.revoked_at.is_(None),
        )
        async with self._database.session() as session:
            if await session.scalar(approved.with_for_update(read=True)) is None:
                return False
            await session.execute(delete(row).where(row.node_id == node_id, row.expires_at <= now))
            if await session.scalar(given.returning(row.user)) is None:
                raise IdentityInUse(
                    "The NATS key of this node was revoked, or belongs to another node. Delete the identity.json "
                    "in the home of the agent and restart it: it makes a new key.",
                    node=node_id,
                )
            return True

    async def revoke_others(self, node_id: str, user: str, *, now: datetime) -> bool:
        """Revoke the earlier credentials of a node that made a new key; True if there were any."""
        row = NatsCredentialRow
        others = update(row).where(row.node_id == node_id, row.user != user, row.revoked_at.is_(None))
        async with self._database.session() as session:
            return bool((await session.scalars(others.values(revoked_at=now).returning(row.user))).all())

    @asynccontextmanager
    async def revoked(self, now: datetime) -> AsyncIterator[Mapping[str, datetime]]:
        """Public key -> expiry of all revoked credentials; holds the lock for updating the server."""
        row = NatsCredentialRow
        is_revoked = row.revoked_at.is_not(None)
        async with self._database.session() as session:
            await session.execute(select(func.pg_advisory_xact_lock(_UPDATE_LOCK)))
            await session.execute(delete(row).where(is_revoked, row.expires_at <= now))
            found = await session.execute(select(row.user, row.expires_at).where(is_revoked))
            yield {each.user: each.expires_at for each in found}


async def revoke_all(session: AsyncSession, node_id: str, now: datetime) -> None:
    """Revoke all credentials of a node, in the transaction that removes or resets it."""
    row = NatsCredentialRow
    await session.execute(update(row).where(row.node_id == node_id, row.revoked_at.is_(None)).values(revoked_at=now))

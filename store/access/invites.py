"""Invites: each admits a number of nodes until it expires; uses are counted in the UPDATE, so none is used twice."""

import uuid
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.domain.access import Invite, InviteTerms
from nodesmith.domain.errors import InviteSpent, NotSignedIn
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.access import InviteRow, InviteUseRow
from nodesmith.store.text import storable


class Invites:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(self, terms: InviteTerms, *, token_hash: str, created_by: str, expires_at: datetime) -> Invite:
        fresh = insert(InviteRow).values(
            id=str(uuid.uuid4()),
            token_hash=token_hash,
            approve=terms.approve,
            uses=terms.uses,
            labels=storable(dict(terms.labels)),
            created_by=created_by,
            created_at=self._clock(),
            expires_at=expires_at,
        )
        async with self._database.session() as session:
            return _invite((await session.execute(fresh.returning(InviteRow))).scalar_one())

    async def list(self) -> Sequence[Invite]:
        async with self._database.session() as session:
            return [
                _invite(row) for row in await session.scalars(select(InviteRow).order_by(InviteRow.created_at.desc()))
            ]

    async def find(self, invite_id: str) -> Invite | None:
        async with self._database.session() as session:
            row = await session.get(InviteRow, invite_id)
            return _invite(row) if row else None

    async def revoke(self, invite_id: str) -> Invite | None:
        """Revoke an invite; returns None when there is no such valid one."""
        live = update(InviteRow).where(InviteRow.id == invite_id, InviteRow.revoked_at.is_(None))
        async with self._database.session() as session:
            row = await session.scalar(live.values(revoked_at=self._clock()).returning(InviteRow))
            return _invite(row) if row else None

    async def redeem(self, token_hash: str, *, node_name: str, machine_id: str) -> tuple[Invite, bool]:
        """Admit a node; returns the invite and whether a use was counted. A repeated request is not counted again.

        Raises and writes nothing when the invite does not admit the node.
        """
        now = self._clock()
        async with self._database.session() as session:
            invite = await session.scalar(select(InviteRow).where(InviteRow.token_hash == token_hash))
            if invite is None:
                raise NotSignedIn("This invite is unknown to this installation.")
            use = insert(InviteUseRow).values(invite_id=invite.id, node_name=node_name, machine_id=machine_id, at=now)
            is_new = bool(await session.scalar(use.on_conflict_do_nothing().returning(InviteUseRow.invite_id)))
            if is_new:
                await _count_use(session, invite, now)
            elif invite.expires_at <= now or invite.revoked_at is not None:
                raise InviteSpent(_refusal(invite, now))
            return _invite(invite), is_new

    async def release_use(self, invite_id: str, *, node_name: str, machine_id: str) -> None:
        """Undo a use whose node could not be registered."""
        use = InviteUseRow
        taken = delete(use).where(use.invite_id == invite_id, use.node_name == node_name, use.machine_id == machine_id)
        async with self._database.session() as session:
            if await session.scalar(taken.returning(use.invite_id)):
                await session.execute(
                    update(InviteRow).where(InviteRow.id == invite_id).values(used=InviteRow.used - 1)
                )


async def _count_use(session: AsyncSession, invite: InviteRow, now: datetime) -> None:
    """Count one use; the statement checks the limits, so that concurrent requests cannot share the last use."""
    row = InviteRow
    admits = (row.id == invite.id, row.used < row.uses, row.expires_at > now, row.revoked_at.is_(None))
    if await session.scalar(update(row).where(*admits).values(used=row.used + 1).returning(row.id)) is None:
        raise InviteSpent(_refusal(invite, now))


def _refusal(invite: InviteRow, now: datetime) -> str:
    if invite.revoked_at is not None:
        return "This invite was revoked."
    if invite.expires_at <= now:
        return f"This invite expired at {invite.expires_at:%Y-%m-%d %H:%M:%S} UTC."
    return f"This invite has been used {invite.uses} times, which is its limit."


def _invite(row: InviteRow) -> Invite:
    return Invite(
        id=row.id,
        approve=row.approve,
        uses=row.uses,
        used=row.used,
        labels=row.labels,
        created_by=row.created_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )

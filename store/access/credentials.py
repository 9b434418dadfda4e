"""Recognises every credential that this installation issued, by its hash."""

from sqlalchemy import or_, select

from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.access import InviteRow, TokenRow
from nodesmith.store.tables.core import NodeRow, RetiredCredentialRow


class Credentials:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def has(self, credential_hash: str) -> bool:
        """Whether it is a valid token or invite, a node's credential, or a retired credential."""
        now = self._clock()
        is_live = or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)
        token = select(TokenRow.id).where(
            TokenRow.token_hash == credential_hash, TokenRow.revoked_at.is_(None), is_live
        )
        invite = select(InviteRow.id).where(
            InviteRow.token_hash == credential_hash, InviteRow.revoked_at.is_(None), InviteRow.expires_at > now
        )
        node = select(NodeRow.id).where(NodeRow.credential_hash == credential_hash)
        removed = select(RetiredCredentialRow.why).where(RetiredCredentialRow.credential_hash == credential_hash)
        known = or_(token.exists(), invite.exists(), node.exists(), removed.exists())
        async with self._database.session() as session:
            return bool(await session.scalar(select(known)))

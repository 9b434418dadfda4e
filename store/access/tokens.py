"""Tokens of people and programs: found by the hash of their secret; never deleted, as the audit trail names them."""

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from nodesmith.domain.access import Role, Token
from nodesmith.domain.errors import TokenNameTaken
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.access import TokenRow

USE_RESOLUTION = timedelta(minutes=1)


class Tokens:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self, name: str, role: Role, *, token_hash: str, created_by: str, expires_at: datetime | None
    ) -> Token:
        """Create a token; refuses a second valid token with the same name, so that a name identifies one actor."""
        now = self._clock()
        retire = update(TokenRow).where(
            TokenRow.name == name, TokenRow.revoked_at.is_(None), TokenRow.expires_at <= now
        )
        fresh = insert(TokenRow).values(
            id=str(uuid.uuid4()),
            name=name,
            role=role,
            token_hash=token_hash,
            created_by=created_by,
            created_at=now,
            expires_at=expires_at,
        )
        async with self._database.session() as session:
            await session.execute(retire.values(revoked_at=TokenRow.expires_at))
            row = await session.scalar(fresh.on_conflict_do_nothing().returning(TokenRow))
            if row is None:
                raise TokenNameTaken(f"There is a token {name} already.", field="name")
            return _token(row)

    async def list(self) -> Sequence[Token]:
        """All tokens: valid ones first, then by age, the newest first."""
        newest = select(TokenRow).order_by(TokenRow.revoked_at.is_not(None), TokenRow.created_at.desc())
        async with self._database.session() as session:
            return [_token(row) for row in await session.scalars(newest)]

    async def find(self, id_or_name: str) -> Token | None:
        """The token with that id or name; of several with one name, the valid one, or else the newest."""
        named = or_(TokenRow.id == id_or_name, TokenRow.name == id_or_name)
        order = (TokenRow.revoked_at.is_not(None), TokenRow.created_at.desc())
        async with self._database.session() as session:
            row = await session.scalar(select(TokenRow).where(named).order_by(*order).limit(1))
            return _token(row) if row else None

    async def revoke(self, id_or_name: str) -> Token | None:
        """Revoke a token, which also ends its browser sessions; returns None when there is no such valid one."""
        live = update(TokenRow).where(
            or_(TokenRow.id == id_or_name, TokenRow.name == id_or_name), TokenRow.revoked_at.is_(None)
        )
        async with self._database.session() as session:
            row = await session.scalar(live.values(revoked_at=self._clock()).returning(TokenRow))
            return _token(row) if row else None

    async def with_secret(self, token_hash: str) -> Token | None:
        """The valid token of a secret; records its use, at most once a minute."""
        now = self._clock()
        async with self._database.session() as session:
            row = await session.scalar(select(TokenRow).where(TokenRow.token_hash == token_hash, *_live(now)))
            if row is None:
                return None
            if row.last_used_at is None or now - row.last_used_at > USE_RESOLUTION:
                await session.execute(update(TokenRow).where(TokenRow.id == row.id).values(last_used_at=now))
            return _token(row)

    async def is_live(self, token_id: str) -> bool:
        async with self._database.session() as session:
            return bool(await session.scalar(select(TokenRow.id).where(TokenRow.id == token_id, *_live(self._clock()))))


def _live(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return TokenRow.revoked_at.is_(None), or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now)


def _token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        created_by=row.created_by,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )

"""Sign-in of a browser: a one-time link creates a session. Only hashes are stored."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert

from nodesmith.domain.access import Caller, Role, Session
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.tables.core import SessionRow, SignInCodeRow

CODE_LIFETIME = timedelta(minutes=15)
SESSION_LIFETIME = timedelta(hours=12)
ID_LENGTH = 16


class SignIn:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def new_code(self, caller: Caller) -> tuple[str, datetime]:
        """Create a code for a link that signs a browser in as this caller; returns it with its expiry."""
        code, now = secrets.token_urlsafe(32), self._clock()
        ends = now + CODE_LIFETIME
        async with self._database.session() as session:
            await session.execute(delete(SignInCodeRow).where(SignInCodeRow.expires_at <= now))
            await session.execute(
                insert(SignInCodeRow).values(code_hash=_hash(code), **_caller_columns(caller), expires_at=ends)
            )
        return code, ends

    async def redeem(self, code: str) -> tuple[str, datetime] | None:
        """Consume the code; returns a session token with its expiry, or None if the code is not valid."""
        token, now = secrets.token_urlsafe(32), self._clock()
        ends = now + SESSION_LIFETIME
        taken = delete(SignInCodeRow).where(SignInCodeRow.code_hash == _hash(code), SignInCodeRow.expires_at > now)
        async with self._database.session() as session:
            code_row = await session.scalar(taken.returning(SignInCodeRow))
            if code_row is None:
                return None
            await session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
            await session.execute(
                insert(SessionRow).values(
                    token_hash=_hash(token), **_caller_columns(_caller(code_row)), expires_at=ends
                )
            )
        return token, ends

    async def caller_of(self, token: str) -> Caller | None:
        """The caller of this session token, None if it is not valid."""
        live = select(SessionRow).where(SessionRow.token_hash == _hash(token), SessionRow.expires_at > self._clock())
        async with self._database.session() as session:
            row = await session.scalar(live)
            return _caller(row) if row else None

    async def list(self, actor: str | None = None) -> Sequence[Session]:
        """The valid sessions of one actor, or of all; the newest first."""
        live = select(SessionRow).where(SessionRow.expires_at > self._clock())
        if actor is not None:
            live = live.where(SessionRow.actor == actor)
        async with self._database.session() as session:
            return [_session(row) for row in await session.scalars(live.order_by(SessionRow.expires_at.desc()))]

    async def end(self, session_id: str, actor: str | None = None) -> Session | None:
        """End a session of one actor, or of any; returns None when there is no such session."""
        named = delete(SessionRow).where(func.left(SessionRow.token_hash, ID_LENGTH) == session_id)
        if actor is not None:
            named = named.where(SessionRow.actor == actor)
        async with self._database.session() as session:
            row = await session.scalar(named.returning(SessionRow))
            return _session(row) if row else None


def id_of(token: str) -> str:
    """The session id of a token: the start of its hash, which grants no access."""
    return _hash(token)[:ID_LENGTH]


def _session(row: SessionRow) -> Session:
    return Session(
        id=row.token_hash[:ID_LENGTH],
        actor=row.actor,
        role=Role(row.role),
        signed_in_at=row.expires_at - SESSION_LIFETIME,
        expires_at=row.expires_at,
    )


def _caller_columns(caller: Caller) -> dict[str, str]:
    return {"actor": caller.name, "role": caller.role, "token_id": caller.token_id}


def _caller(row: SignInCodeRow | SessionRow) -> Caller:
    return Caller(row.actor, Role(row.role), row.token_id)


def _hash(secret: str) -> str:
    """Plain SHA-256: a secret of 256 random bits needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()

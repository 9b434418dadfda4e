"""Sign-in of a browser: a link that works once becomes a session. Only hashes are stored."""

import hashlib
import secrets
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from domain.access import Caller, Role
from store.clock import Clock, utc_now
from store.database import Database
from store.models import SessionRow, SignInCodeRow

CODE_LIFETIME = timedelta(minutes=15)
SESSION_LIFETIME = timedelta(hours=12)


class SignIn:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def new_code(self, caller: Caller) -> tuple[str, datetime]:
        """A code for a link that signs a browser in as this caller, and when it ends."""
        code, now = secrets.token_urlsafe(32), self._clock()
        ends = now + CODE_LIFETIME
        async with self._database.session() as session:
            await session.execute(delete(SignInCodeRow).where(SignInCodeRow.expires_at <= now))
            await session.execute(insert(SignInCodeRow).values(code_hash=_hash(code), **_who(caller), expires_at=ends))
        return code, ends

    async def redeem(self, code: str) -> tuple[str, datetime] | None:
        """Take the code away and give a session token, and when it ends; None if the code is not good any more."""
        token, now = secrets.token_urlsafe(32), self._clock()
        ends = now + SESSION_LIFETIME
        taken = delete(SignInCodeRow).where(SignInCodeRow.code_hash == _hash(code), SignInCodeRow.expires_at > now)
        async with self._database.session() as session:
            code_row = await session.scalar(taken.returning(SignInCodeRow))
            if code_row is None:
                return None
            await session.execute(delete(SessionRow).where(SessionRow.expires_at <= now))
            await session.execute(
                insert(SessionRow).values(token_hash=_hash(token), **_who(_caller(code_row)), expires_at=ends)
            )
        return token, ends

    async def caller_of(self, token: str) -> Caller | None:
        """Who is signed in with this session token."""
        live = select(SessionRow).where(SessionRow.token_hash == _hash(token), SessionRow.expires_at > self._clock())
        async with self._database.session() as session:
            row = await session.scalar(live)
            return _caller(row) if row else None


def _who(caller: Caller) -> dict[str, str]:
    return {"actor": caller.name, "role": caller.role, "token_id": caller.token_id}


def _caller(row: SignInCodeRow | SessionRow) -> Caller:
    return Caller(row.actor, Role(row.role), row.token_id)


def _hash(secret: str) -> str:
    """256 random bits need no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()

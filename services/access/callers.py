"""Access: finds the caller behind a token or a browser session, and manages tokens."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from nodesmith.domain.access import Caller, Role, Session, Token
from nodesmith.domain.errors import InvalidRequest, NotAllowed, UnknownSession, UnknownToken
from nodesmith.domain.token_hash import hash_token, same

DEPLOYMENT_ADMIN = "admin"
"""the actor of the deployment's admin token, which is stored in a file"""
_PREFIX = "nstok-"


class TokenTable(Protocol):
    async def create(
        self, name: str, role: Role, *, token_hash: str, created_by: str, expires_at: datetime | None
    ) -> Token: ...
    async def list(self) -> Sequence[Token]: ...
    async def find(self, id_or_name: str) -> Token | None: ...
    async def revoke(self, id_or_name: str) -> Token | None: ...
    async def with_secret(self, token_hash: str) -> Token | None: ...
    async def is_live(self, token_id: str) -> bool: ...


class Browsers(Protocol):
    async def caller_of(self, token: str) -> Caller | None: ...
    async def list(self, actor: str | None = None) -> Sequence[Session]: ...
    async def end(self, session_id: str, actor: str | None = None) -> Session | None: ...


class CredentialTable(Protocol):
    async def has(self, credential_hash: str) -> bool: ...


@dataclass(frozen=True)
class KnownCredentials:
    """Recognises every secret that this installation issued, to a person, a program or a node."""

    table: CredentialTable
    shared: tuple[str, ...]
    """the secrets of the deployment, which are stored in files"""

    async def include(self, shown: str) -> bool:
        """Compare shared secrets in constant time; the table is searched by hash."""
        is_shared = [same(shown, secret) for secret in self.shared]
        return any(is_shared) or await self.table.has(hash_token(shown))


@dataclass(frozen=True)
class Access:
    tokens: TokenTable
    browsers: Browsers
    admin_token: str
    clock: Callable[[], datetime]

    async def by_token(self, shown: str) -> Caller | None:
        """The caller behind a token; the table is searched by hash, so its timing reveals nothing."""
        if same(shown, self.admin_token):
            return Caller(DEPLOYMENT_ADMIN, Role.ADMIN, self._admin_token_id)
        known = await self.tokens.with_secret(hash_token(shown))
        return Caller(known.name, known.role, known.id) if known else None

    async def by_session(self, shown: str) -> Caller | None:
        """The caller behind a browser session; the session ends when the token that created it is revoked."""
        caller = await self.browsers.caller_of(shown)
        if caller is None:
            return None
        is_live = caller.token_id == self._admin_token_id or await self.tokens.is_live(caller.token_id)
        return caller if is_live else None

    async def sessions(self, *, of: Caller) -> Sequence[Session]:
        """The caller's own sessions; all sessions for an admin."""
        return await self.browsers.list(_session_scope(of))

    async def end_session(self, session_id: str, *, by: Caller) -> Session:
        """End the caller's own session, or any for an admin. Another caller's session is reported as unknown."""
        ended = await self.browsers.end(session_id, _session_scope(by))
        if ended is None:
            raise UnknownSession(f"There is no session {session_id}.", session=session_id)
        return ended

    @property
    def _admin_token_id(self) -> str:
        """Derived from the token: replacing the token ends the sessions of the old one."""
        return f"file-{hash_token(self.admin_token)[:16]}"

    async def create(self, name: str, role: Role, *, expires_in_s: float | None, by: Caller) -> tuple[Token, str]:
        """Create a token; returns it with its secret, which is not stored."""
        if name.lower() == DEPLOYMENT_ADMIN:
            raise InvalidRequest("name: admin is the name of the deployment's own token.", field="name")
        secret = _PREFIX + secrets.token_urlsafe(32)
        token = await self.tokens.create(
            name,
            role,
            token_hash=hash_token(secret),
            created_by=by.name,
            expires_at=self.clock() + timedelta(seconds=expires_in_s) if expires_in_s else None,
        )
        return token, secret

    async def revoke(self, token: str) -> Token:
        revoked = await self.tokens.revoke(token)
        if revoked is None:
            raise UnknownToken(f"There is no token {token} in force.", token=token)
        return revoked


def _session_scope(caller: Caller) -> str | None:
    """The actor whose sessions a caller may list and end; None means all actors."""
    return None if caller.role is Role.ADMIN else caller.name


def require(caller: Caller, needed: Role) -> None:
    if not caller.role.includes(needed):
        raise NotAllowed(
            f"{caller.name} has the role {caller.role}; this needs {needed}.", role=caller.role, needed=needed
        )

"""Access: whose token or browser that is, and the tokens themselves."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from contracts.access import TokenCreated, TokenRequest, TokenView
from domain.access import Caller, Role
from domain.errors import InvalidRequest, NotAllowed, UnknownToken
from domain.secrets import hash_token, same

DEPLOYMENT_ADMIN = "admin"
"""the actor behind the admin token of the deployment, which is a file"""
_MARK = "nstok-"


class TokenTable(Protocol):
    async def create(
        self, name: str, role: Role, *, token_hash: str, created_by: str, expires_at: datetime | None
    ) -> TokenView: ...
    async def list(self) -> Sequence[TokenView]: ...
    async def revoke(self, id_or_name: str) -> TokenView | None: ...
    async def with_secret(self, token_hash: str) -> TokenView | None: ...
    async def is_live(self, token_id: str) -> bool: ...


class Browsers(Protocol):
    async def caller_of(self, token: str) -> Caller | None: ...


@dataclass(frozen=True)
class Access:
    tokens: TokenTable
    browsers: Browsers
    admin_token: str
    clock: Callable[[], datetime]

    async def by_token(self, shown: str) -> Caller | None:
        """The caller behind a token; a table is looked up by hash, so its answer times tell nothing."""
        if same(shown, self.admin_token):
            return Caller(DEPLOYMENT_ADMIN, Role.ADMIN)
        known = await self.tokens.with_secret(hash_token(shown))
        return Caller(known.name, known.role, known.id) if known else None

    async def by_session(self, shown: str) -> Caller | None:
        """The caller behind a signed-in browser: signed out with the token that signed it in."""
        caller = await self.browsers.caller_of(shown)
        if caller is None or (caller.token_id and not await self.tokens.is_live(caller.token_id)):
            return None
        return caller

    async def create(self, request: TokenRequest, *, by: Caller) -> TokenCreated:
        if request.name.lower() == DEPLOYMENT_ADMIN:
            raise InvalidRequest("name: admin is the name of the deployment's own token.", field="name")
        secret = _MARK + secrets.token_urlsafe(32)
        lifetime = request.expires_in_s
        made = await self.tokens.create(
            request.name,
            request.role,
            token_hash=hash_token(secret),
            created_by=by.name,
            expires_at=self.clock() + timedelta(seconds=lifetime) if lifetime else None,
        )
        return TokenCreated(**made.model_dump(), token=secret)

    async def revoke(self, token: str) -> TokenView:
        revoked = await self.tokens.revoke(token)
        if revoked is None:
            raise UnknownToken(f"There is no token {token} in force.", token=token)
        return revoked


def require(caller: Caller, needed: Role) -> None:
    if not caller.role.includes(needed):
        raise NotAllowed(
            f"{caller.name} has the role {caller.role}; this needs {needed}.", role=caller.role, needed=needed
        )

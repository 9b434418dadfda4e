"""Who asks: the admin by token or signed-in browser, a node by its own credential."""

import hmac
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from api.parts import PartsOf
from domain.errors import NotAllowed, NotSignedIn
from services.registration import hash_token

ADMIN = "admin"
SESSION_COOKIE = "nodesmith_session"
_HARMLESS = {"GET", "HEAD", "OPTIONS"}

_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="The admin token, or a node's credential.")
_session = APIKeyCookie(
    name=SESSION_COOKIE, auto_error=False, scheme_name="session", description="A signed-in browser."
)


def same(shown: str, kept: str) -> bool:
    """Compare secrets in constant time; a secret that is not set matches nothing."""
    return bool(kept) and hmac.compare_digest(shown.encode(), kept.encode())


async def bearer(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    """The token that was sent; empty when none was."""
    return credentials.credentials if credentials else ""


Bearer = Annotated[str, Depends(bearer)]
Session = Annotated[str | None, Depends(_session)]


async def admin(request: Request, parts: PartsOf, token: Bearer, session: Session) -> str:
    """The admin, by token or by a signed-in browser."""
    if token and same(token, parts.admin_token):
        return ADMIN
    if session and not token and (actor := await parts.sign_in.actor_of(session)):
        _refuse_foreign_pages(request)
        return actor
    raise NotSignedIn


async def admin_or_node(request: Request, parts: PartsOf, token: Bearer, session: Session) -> str:
    """The admin, or any node with a credential of its own: artifacts are for both."""
    if token and (node := await parts.nodes.with_credential(hash_token(token))):
        return node.id
    return await admin(request, parts, token, session)


Admin = Annotated[str, Depends(admin)]


def _refuse_foreign_pages(request: Request) -> None:
    """SameSite lets pages of other ports of this host through; their Origin tells them apart."""
    origin = request.headers.get("origin")
    if request.method in _HARMLESS or origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise NotAllowed("A page of another origin asked for this.")

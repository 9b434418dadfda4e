"""Authentication and roles: a caller by token or browser session, a node by its own credential, or anyone.

Every route declares one of them; a route that declares none is for admins only:

    router = APIRouter(..., dependencies=[Depends(viewer)])     # every GET of the router
    async def cancel(op_id: OpId, actor: Operator) -> ...       # a change, with the actor's name
    @router.post("/...", dependencies=[Depends(admin)])         # a change, without
"""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Path, Request
from fastapi.dependencies.models import Dependant
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from nodesmith.api import auditing, idempotency
from nodesmith.api.dependencies import Dependencies, Deps, dependencies_of
from nodesmith.contracts.http.shared import hide_queries
from nodesmith.domain.access import Caller, Role
from nodesmith.domain.errors import NotAllowed, NotSignedIn, UnknownNode
from nodesmith.domain.node import Node
from nodesmith.domain.secrets import hash_token, same
from nodesmith.services.access.callers import Access, require

SESSION_COOKIE = "nodesmith_session"
TLS_SESSION_COOKIE = f"__Host-{SESSION_COOKIE}"
"""with TLS: browsers accept this prefix only from this host, over TLS, for every path"""
_HARMLESS = {"GET", "HEAD", "OPTIONS"}

_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="A token, or a node's credential.")
_session = APIKeyCookie(
    name=SESSION_COOKIE, auto_error=False, scheme_name="session", description="A signed-in browser."
)


async def bearer(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    """Return the token of the request; empty if it has none."""
    return credentials.credentials if credentials else ""


Bearer = Annotated[str, Depends(bearer)]
NodeId = Annotated[str, Path(description="Id or name of the node.")]


def session_cookie(request: Request) -> str:
    """Return the name of the session cookie; with TLS, a name that a page without TLS cannot set."""
    return TLS_SESSION_COOKIE if request.url.scheme == "https" else SESSION_COOKIE


async def session_cookie_value(request: Request, _declared: Annotated[str | None, Depends(_session)]) -> str | None:
    """Return the session cookie; `_declared` only adds it to the OpenAPI schema."""
    return request.cookies.get(session_cookie(request))


Session = Annotated[str | None, Depends(session_cookie_value)]


async def caller(request: Request, token: Bearer, session: Session) -> Caller:
    """Return the caller; 401 unless the request has a valid token or session."""
    known = await identify(dependencies_of(request).access, token, session)
    if known is None:
        raise NotSignedIn
    if not token:
        refuse_foreign_pages(request)
    hide_queries(hidden=known.role is not Role.ADMIN)
    return known


async def identify(access: Access, token: str, session: str | None) -> Caller | None:
    """Return the caller behind the token, or else behind the session; None if it is not valid (any more)."""
    if token:
        return await access.by_token(token)
    return await access.by_session(session) if session else None


async def still_admitted(deps: Dependencies, token: str, session: str | None) -> None:
    """Check the credential again after a long wait: 401 if it was revoked or signed out meanwhile."""
    if await identify(deps.access, token, session) is None:
        raise NotSignedIn


CallerOf = Annotated[Caller, Depends(caller)]


async def viewer(who: CallerOf) -> str:
    """Any role, for reads. Where a router declares it, routes that change something declare more."""
    require(who, Role.VIEWER)
    return who.name


async def operator(request: Request, who: CallerOf) -> str:
    """Operators and admins: operations, and draining nodes."""
    return await _admit(request, who, Role.OPERATOR)


async def admin(request: Request, who: CallerOf) -> str:
    """Admins: nodes, tokens, invites, galleries and sources."""
    return await _admit(request, who, Role.ADMIN)


async def viewer_or_node(request: Request, deps: Deps, token: Bearer, session: Session) -> str:
    """Any role, or an approved node with its own credential: both fetch artifacts."""
    if token and (node := await deps.nodes.with_credential(hash_token(token))):
        if node.approved_at is None:
            raise NotAllowed("The node waits for approval.")
        return node.id
    return await viewer(await caller(request, token, session))


async def any_role(request: Request, who: CallerOf) -> str:
    """Any role, also for a write: only for writes that affect no other caller."""
    return await _admit(request, who, Role.VIEWER)


async def call_router(request: Request, who: CallerOf) -> str:
    """Operators and admins: routers that count calls on replicas. Not audited: a call changes nothing for people."""
    require(who, Role.OPERATOR)
    await idempotency.begin(request, who)
    return who.name


async def own_node(request: Request, deps: Deps, token: Bearer) -> Node | None:
    """The node that the path names, authenticated by its own credential.

    Only a caller that could register may learn that a node does not exist.
    """
    node = request.path_params.get("node")
    if node is None:
        return None
    if not token:
        raise NotSignedIn
    try:
        return await deps.registration.authenticate_node(node, bearer=token)
    except UnknownNode:
        if same(token, deps.registration.registration_token):
            await deps.lifecycle.stop_if_removed(node)
            raise
        raise NotSignedIn from None


async def calling_node(
    node: NodeId,
    known: Annotated[Node | None, Depends(own_node)],
) -> Node:
    """The node that sent the request, for paths that name it."""
    if known is None:
        raise NotSignedIn(f"The credential does not belong to node {node}.")
    return known


async def anyone(request: Request) -> None:
    """No credential needed."""
    request.state.is_open = True


CallingNode = Annotated[Node, Depends(calling_node)]
Operator = Annotated[str, Depends(operator)]
Admin = Annotated[str, Depends(admin)]

READS = (viewer, viewer_or_node)
DECLARATIONS = (operator, admin, any_role, call_router, own_node, anyone)


async def require_declared_access(request: Request) -> None:
    """Applied to every route: a route that declares no access is for admins."""
    if not is_declared(request.scope["route"].dependant, reads=request.method in _HARMLESS):
        token = await bearer(await _bearer(request))
        await admin(request, await caller(request, token, await session_cookie_value(request, None)))


def is_declared(dependant: Dependant, *, reads: bool) -> bool:
    """Return whether a route declares its access. A router's `viewer` covers reads only; changes declare their own."""
    enough = (*DECLARATIONS, *READS) if reads else DECLARATIONS
    return any(below.call in enough or is_declared(below, reads=reads) for below in dependant.dependencies)


async def _admit(request: Request, who: Caller, needed: Role) -> str:
    require(who, needed)
    request.state.caller = who
    if request.method not in _HARMLESS:
        await idempotency.begin(request, who)
        await auditing.begin(request, who)
    return who.name


def require_uri_right(request: Request, uri: str) -> None:
    """Check the role for an install by uri: its code runs on the node, and no gallery has verified it."""
    needed = dependencies_of(request).admission.intents.rules.role
    who: Caller = request.state.caller
    if uri and not who.role.includes(needed):
        raise NotAllowed(
            f"{who.name} has the role {who.role}; an install by uri needs {needed}.", role=who.role, needed=needed
        )


def refuse_foreign_pages(request: Request) -> None:
    """Refuse a change by session cookie that does not come from one of our own pages.

    SameSite admits pages on other ports of this host. Browsers state the origin in headers that no page can set, so a
    request without them is refused.
    """
    if request.method in _HARMLESS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "")
    is_ours = urlsplit(origin).netloc == request.headers.get("host")
    if site not in (None, "same-origin") or not is_ours:
        raise NotAllowed("The request came from a page of another origin, or without an Origin header.")

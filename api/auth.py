"""Who asks: a caller with a role, by token or signed-in browser; a node by its own credential; or anyone.

Every route declares one of them, and one that forgets is for admins only:

    router = APIRouter(..., dependencies=[Depends(viewer)])     # every GET of the router
    async def cancel(op_id: OpId, actor: Operator) -> ...       # a change, with the actor's name
    @router.post("/...", dependencies=[Depends(admin)])         # a change, without
"""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Path, Request
from fastapi.dependencies.models import Dependant
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from api import auditing
from api.parts import PartsOf, parts_of
from contracts.node_http import NodeView
from domain.access import Caller, Role
from domain.errors import NotAllowed, NotSignedIn, UnknownNode
from domain.secrets import hash_token, same
from services.access import Access, require

SESSION_COOKIE = "nodesmith_session"
_HARMLESS = {"GET", "HEAD", "OPTIONS"}

_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="A token, or a node's credential.")
_session = APIKeyCookie(
    name=SESSION_COOKIE, auto_error=False, scheme_name="session", description="A signed-in browser."
)


async def bearer(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    """The token that was sent; empty when none was."""
    return credentials.credentials if credentials else ""


Bearer = Annotated[str, Depends(bearer)]
NodeId = Annotated[str, Path(description="Id or name of the node.")]
Session = Annotated[str | None, Depends(_session)]


async def caller(request: Request, token: Bearer, session: Session) -> Caller:
    """Who asks; 401 unless a valid token or session was sent."""
    known = await identify(parts_of(request).access, token, session)
    if known is None:
        raise NotSignedIn
    if not token:
        _refuse_foreign_pages(request)
    return known


async def identify(access: Access, token: str, session: str | None) -> Caller | None:
    """Who is behind a token, or, without one, behind a session; None when it is not good (any more)."""
    if token:
        return await access.by_token(token)
    return await access.by_session(session) if session else None


CallerOf = Annotated[Caller, Depends(caller)]


async def viewer(request: Request, who: CallerOf) -> str:
    """For everybody with a token: reads."""
    return await _admit(request, who, Role.VIEWER)


async def operator(request: Request, who: CallerOf) -> str:
    """For operators and admins: operations, and draining nodes."""
    return await _admit(request, who, Role.OPERATOR)


async def admin(request: Request, who: CallerOf) -> str:
    """For admins: who takes part, and with what."""
    return await _admit(request, who, Role.ADMIN)


async def viewer_or_node(request: Request, parts: PartsOf, token: Bearer, session: Session) -> str:
    """Anybody with a token, or any node with a credential of its own: artifacts are for both."""
    if token and (node := await parts.nodes.with_credential(hash_token(token))):
        return node.id
    return await viewer(request, await caller(request, token, session))


async def any_role(request: Request, who: CallerOf) -> str:
    """For everybody with a token, also where something is written: only for what concerns nobody else."""
    return await _admit(request, who, Role.VIEWER)


async def itself(request: Request, parts: PartsOf, token: Bearer) -> NodeView | None:
    """For a node that speaks for itself: the node that the path names, by its own credential.

    Only who could register may learn that a node does not exist.
    """
    node = request.path_params.get("node")
    if node is None:
        return None
    if not token:
        raise NotSignedIn
    try:
        return await parts.registration.speaks_for(node, bearer=token)
    except UnknownNode:
        if same(token, parts.registration.registration_token):
            await parts.lifecycle.tell_if_removed(node)
            raise
        raise NotSignedIn from None


async def speaker(
    node: NodeId,
    known: Annotated[NodeView | None, Depends(itself)],
) -> NodeView:
    """The node that speaks, where the path names it."""
    if known is None:
        raise NotSignedIn(f"Nobody speaks for node {node}.")
    return known


async def anyone(request: Request) -> None:
    """For everybody, without a credential."""
    request.state.is_open = True


Speaker = Annotated[NodeView, Depends(speaker)]
Operator = Annotated[str, Depends(operator)]
Admin = Annotated[str, Depends(admin)]

READS = (viewer, viewer_or_node)
DECLARATIONS = (operator, admin, any_role, itself, anyone)


async def undeclared_is_for_admins(request: Request) -> None:
    """In force on every route: what its author forgot to declare is not open."""
    if not is_declared(request.scope["route"].dependant, reads=request.method in _HARMLESS):
        token = await bearer(await _bearer(request))
        await admin(request, await caller(request, token, await _session(request)))


def is_declared(dependant: Dependant, *, reads: bool) -> bool:
    """A router's `viewer` declares its reads; who may change something is said by the route itself."""
    enough = (*DECLARATIONS, *READS) if reads else DECLARATIONS
    return any(below.call in enough or is_declared(below, reads=reads) for below in dependant.dependencies)


async def _admit(request: Request, who: Caller, needed: Role) -> str:
    require(who, needed)
    if request.method not in _HARMLESS:
        await auditing.begin(request, who)
    return who.name


def _refuse_foreign_pages(request: Request) -> None:
    """SameSite lets pages of other ports of this host through; their Origin tells them apart."""
    origin = request.headers.get("origin")
    if request.method in _HARMLESS or origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise NotAllowed("A page of another origin asked for this.")

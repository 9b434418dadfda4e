"""Browser sign-in and sign-out: a link works once and sets a session cookie; a session lasts until it is ended."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from nodesmith.api import auditing
from nodesmith.api.auth import Bearer, CallerOf, Session, any_role, anyone, session_cookie, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.idempotency import shown_once
from nodesmith.api.pages import STYLES, styles
from nodesmith.api.problems import responses
from nodesmith.api.temporal_ui import RETURN_COOKIE, url_after_sign_in
from nodesmith.api.views.shapes import view_of, views_of
from nodesmith.contracts.http.access import SessionView
from nodesmith.contracts.http.shared import Message, Page, SignInLink
from nodesmith.domain.errors import InvalidRequest, NotSignedIn
from nodesmith.store.access.sign_in import id_of

router = APIRouter(tags=["sign-in"])


@router.get(STYLES, include_in_schema=False, dependencies=[Depends(anyone)])
async def styles_of_all_pages() -> FileResponse:
    """Public: the sign-in page needs them too."""
    return styles()


@router.post(
    "/api/v1/sign-in-links",
    status_code=201,
    dependencies=[Depends(any_role), Depends(shown_once)],
    responses=responses(),
)
async def create_sign_in_link(request: Request, deps: Deps, caller: CallerOf) -> SignInLink:
    """Create a link that signs in one browser, once, with the role of the token that requested it."""
    code, expires_at = await deps.sign_in.new_code(caller)
    auditing.record(request, target=caller.name, after={"role": caller.role, "expires_at": expires_at.isoformat()})
    return SignInLink(url=str(request.url_for("open_sign_in_link", code=code)), expires_at=expires_at)


@router.get(
    "/sign-in/{code}",
    status_code=303,
    response_class=RedirectResponse,
    dependencies=[Depends(anyone)],
    responses={303: {"description": "Signed in; continue at /"}, **responses(400)},
)
async def open_sign_in_link(
    code: Annotated[str, Path(description="The code of the link.")], request: Request, deps: Deps
) -> RedirectResponse:
    """Sign in a browser with a link."""
    session = await deps.sign_in.redeem(code)
    if session is None:
        raise NotSignedIn("This sign-in link was used already, or it has expired.")
    token, expires_at = session
    response = RedirectResponse(url_after_sign_in(request, deps), status_code=303)
    response.delete_cookie(RETURN_COOKIE)
    response.set_cookie(session_cookie(request), token, expires=expires_at, **_cookie(request))
    return response


@router.post("/api/v1/sign-out", dependencies=[Depends(any_role)], responses=responses(400, 403))
async def sign_out(
    request: Request, response: Response, deps: Deps, caller: CallerOf, *, token: Bearer, session: Session
) -> Message:
    """Sign this browser out. Its open event streams end at their next keep-alive."""
    if token or not session:
        raise InvalidRequest("The request has a token and no session. To revoke a token: `nodesmith tokens revoke`.")
    ended = await deps.access.end_session(id_of(session), by=caller)
    auditing.record(request, target=ended.actor, target_id=ended.id)
    response.delete_cookie(session_cookie(request), **_cookie(request))
    return Message(message="signed out")


@router.get("/api/v1/sessions", dependencies=[Depends(viewer)], responses=responses())
async def list_sessions(deps: Deps, caller: CallerOf) -> Page[SessionView]:
    """The signed-in browsers of the caller; for an admin, all of them."""
    return Page(items=views_of(SessionView, await deps.access.sessions(of=caller)))


@router.delete("/api/v1/sessions/{session_id}", dependencies=[Depends(any_role)], responses=responses(403, 404))
async def end_session(
    session_id: Annotated[str, Path(description="The id of the session.")],
    request: Request,
    deps: Deps,
    caller: CallerOf,
) -> SessionView:
    """Sign out one of the caller's browsers; for an admin, any browser."""
    ended = await deps.access.end_session(session_id, by=caller)
    auditing.record(request, target=ended.actor, target_id=ended.id, before={"role": ended.role})
    return view_of(SessionView, ended)


def _cookie(request: Request) -> dict[str, Any]:
    """Not readable by scripts nor sent to other sites; with TLS, never sent without it."""
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": request.url.scheme == "https"}

"""Signing a browser in: the admin gets a link, the link works once and leaves a session cookie."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import RedirectResponse

from api import auditing
from api.auth import SESSION_COOKIE, CallerOf, any_role, anyone
from api.parts import PartsOf
from api.problems import responses
from contracts.http import SignInLink
from domain.errors import NotSignedIn

router = APIRouter(tags=["sign-in"])


@router.post("/api/sign-in-links", status_code=201, dependencies=[Depends(any_role)], responses=responses())
async def new_link(request: Request, parts: PartsOf, caller: CallerOf) -> SignInLink:
    """A link that signs one browser in, once, with the role of the token that asks for it."""
    code, expires_at = await parts.sign_in.new_code(caller)
    auditing.tell(request, target=caller.name, after={"role": caller.role, "expires_at": expires_at.isoformat()})
    return SignInLink(url=str(request.url_for("open_link", code=code)), expires_at=expires_at)


@router.get(
    "/sign-in/{code}",
    status_code=303,
    response_class=RedirectResponse,
    dependencies=[Depends(anyone)],
    responses={303: {"description": "Signed in; continue at /"}, **responses(400)},
)
async def open_link(
    code: Annotated[str, Path(description="The code of the link.")], request: Request, parts: PartsOf
) -> RedirectResponse:
    session = await parts.sign_in.redeem(code)
    if session is None:
        raise NotSignedIn("This sign-in link was used already, or its time is over.")
    token, expires_at = session
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(
        SESSION_COOKIE,
        token,
        expires=expires_at,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response

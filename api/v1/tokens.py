"""The tokens of users and programs, for admins."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from nodesmith.api import auditing
from nodesmith.api.auth import CallerOf, admin
from nodesmith.api.dependencies import Deps
from nodesmith.api.idempotency import shown_once
from nodesmith.api.locations import declared_location, locate
from nodesmith.api.problems import responses
from nodesmith.api.views.shapes import fields_of, view_of, views_of
from nodesmith.contracts.http.access import TokenCreated, TokenRequest, TokenView
from nodesmith.contracts.http.shared import Page
from nodesmith.domain.errors import UnknownToken

Token = Annotated[str, Path(description="Id or name of the token.")]

router = APIRouter(prefix="/api/v1/tokens", tags=["tokens"], dependencies=[Depends(admin)])


@router.get("", responses=responses())
async def list_tokens(deps: Deps) -> Page[TokenView]:
    """All tokens, valid ones first, without their secrets."""
    return Page(items=views_of(TokenView, await deps.access.tokens.list()))


@router.get("/{token}", responses=responses(400, 404))
async def get_token(token: Token, deps: Deps) -> TokenView:
    """One token, without its secret."""
    found = await deps.access.tokens.find(token)
    if found is None:
        raise UnknownToken(f"There is no token {token}.", token=token)
    return view_of(TokenView, found)


@router.post(
    "",
    status_code=201,
    dependencies=[Depends(admin), Depends(shown_once)],
    responses={**declared_location(201), **responses(400, 409)},
)
async def create_token(
    body: TokenRequest, request: Request, response: Response, deps: Deps, caller: CallerOf
) -> TokenCreated:
    """Create a token. Only this response contains its secret."""
    token, secret = await deps.access.create(body.name, body.role, expires_in_s=body.expires_in_s, by=caller)
    made = TokenCreated(**fields_of(view_of(TokenView, token)), token=secret)
    after = made.model_dump(mode="json", include={"role", "expires_at"})
    auditing.record(request, target=made.name, target_id=made.id, after=after)
    locate(response, f"{router.prefix}/{made.id}")
    return made


@router.delete("/{token}", responses=responses(400, 404))
async def revoke_token(token: Token, request: Request, deps: Deps) -> TokenView:
    """Revoke a token; the browsers that it signed in lose access too."""
    revoked = view_of(TokenView, await deps.access.revoke(token))
    before = revoked.model_dump(mode="json", include={"role", "expires_at"})
    auditing.record(request, target=revoked.name, target_id=revoked.id, before=before)
    return revoked

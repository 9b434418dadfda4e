"""The tokens of people and programs, for admins."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from api import auditing
from api.auth import CallerOf, admin
from api.parts import PartsOf
from api.problems import responses
from contracts.access import TokenCreated, TokenRequest, TokenView

router = APIRouter(prefix="/api/tokens", tags=["tokens"], dependencies=[Depends(admin)])


@router.get("", name="list", responses=responses())
async def list_tokens(parts: PartsOf) -> list[TokenView]:
    """All tokens, those in force first; never their secrets."""
    return list(await parts.access.tokens.list())


@router.post("", name="create", status_code=201, responses=responses(400, 409))
async def create_token(body: TokenRequest, request: Request, parts: PartsOf, caller: CallerOf) -> TokenCreated:
    """A new token. Its secret is in this answer and nowhere else."""
    made = await parts.access.create(body, by=caller)
    after = made.model_dump(mode="json", include={"role", "expires_at"})
    auditing.tell(request, target=made.name, target_id=made.id, after=after)
    return made


@router.delete("/{token}", name="revoke", responses=responses(400, 404))
async def revoke_token(
    token: Annotated[str, Path(description="Id or name of the token.")], request: Request, parts: PartsOf
) -> TokenView:
    """From now on it opens nothing, nor do the browsers that it signed in."""
    revoked = await parts.access.revoke(token)
    before = revoked.model_dump(mode="json", include={"role", "expires_at"})
    auditing.tell(request, target=revoked.name, target_id=revoked.id, before=before)
    return revoked

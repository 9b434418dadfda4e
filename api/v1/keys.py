"""The keys that sign orders: the trust lists, which are public; listing and rotating the keys, for admins."""

import asyncio

from fastapi import APIRouter, Depends, Request

from nodesmith.api import auditing
from nodesmith.api.auth import admin, anyone
from nodesmith.api.dependencies import Dependencies, Deps
from nodesmith.api.problems import responses
from nodesmith.api.views.shapes import view_of
from nodesmith.contracts.http.keys import KeysView, NodesBehind, RotateKeys
from nodesmith.contracts.nats.orders import TrustChain
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.trust_lists import TrustedKeys

router = APIRouter(tags=["keys"])


@router.get("/api/v1/trust", dependencies=[Depends(anyone)], responses=responses())
async def get_trust_lists(deps: Deps) -> TrustChain:
    """Every trust list since the first. Public: it holds only public keys, and agents verify it."""
    return deps.keyring.chain()


@router.get("/api/v1/keys", dependencies=[Depends(admin)], responses=responses())
async def list_keys(deps: Deps) -> KeysView:
    """The order keys of the newest trust list, and how many nodes lack that list; no secrets."""
    return await _view(deps)


@router.post("/api/v1/keys/rotate", dependencies=[Depends(admin)], responses=responses(400))
async def rotate_keys(body: RotateKeys, request: Request, deps: Deps) -> KeysView:
    """Sign with a new order key from now on. The old keys stay valid for 48 hours, unless they are revoked.

    Connected nodes are notified at once and fetch the new list; `nodes_behind` lists those that have not yet.
    """
    before = deps.keyring.keys()
    await asyncio.to_thread(deps.keyring.rotate, revoke=body.revoke, root=body.root)
    await deps.renewal.spread.notify_now()
    after = deps.keyring.keys()
    auditing.record(
        request, target=after.trust, before=_audit_facts(before), after={**_audit_facts(after), **body.model_dump()}
    )
    return view_of(KeysView, after).model_copy(update={"nodes_behind": await _behind(deps)})


async def _view(deps: Dependencies) -> KeysView:
    behind = view_of(NodesBehind, await deps.renewal.spread.behind())
    return view_of(KeysView, deps.keyring.keys()).model_copy(update={"nodes_behind": behind})


async def _behind(deps: Dependencies) -> NodesBehind | None:
    """Return None if PostgreSQL does not answer: the rotation itself has succeeded."""
    try:
        return view_of(NodesBehind, await deps.renewal.spread.behind())
    except NodesmithError:
        return None


def _audit_facts(trusted: TrustedKeys) -> dict[str, object]:
    return {"version": trusted.version, "kids": [key.kid for key in trusted.keys]}

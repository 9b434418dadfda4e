"""The hold, which stops everything that has not reached a node."""

from fastapi import APIRouter, Depends, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.contracts.http.hold import HoldBody, HoldView
from nodesmith.domain.hold import Hold

router = APIRouter(prefix="/api/v1/hold", tags=["hold"], dependencies=[Depends(viewer)])


@router.get("", responses=responses())
async def get_hold(deps: Deps) -> HoldView:
    """Whether work is held, by whom and why."""
    return _view(await deps.hold_service.current())


@router.put("", responses=responses(400))
async def set_hold(body: HoldBody, request: Request, deps: Deps, actor: Operator) -> HoldView:
    """Nothing that has not reached a node starts, on any replica, until the hold is released."""
    before = await deps.hold_service.current()
    return _audited(request, before, await deps.hold_service.hold(body.reason, actor=actor))


@router.delete("", responses=responses(400))
async def release_hold(request: Request, deps: Deps, actor: Operator) -> HoldView:
    """Release the hold; what it held back continues."""
    before = await deps.hold_service.current()
    return _audited(request, before, await deps.hold_service.release(actor=actor))


def _audited(request: Request, before: Hold | None, after: Hold | None) -> HoldView:
    was, now = _view(before), _view(after)
    auditing.record(request, target="hold", before=was.model_dump(mode="json"), after=now.model_dump(mode="json"))
    return now


def _view(hold: Hold | None) -> HoldView:
    return HoldView(held=True, reason=hold.reason, by=hold.by, since=hold.since) if hold else HoldView(held=False)

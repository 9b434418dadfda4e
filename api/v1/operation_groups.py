"""Many operations at once: bulk cancel and dismiss, pending work, and emptying the history."""

from fastapi import APIRouter, Depends, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, Operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.v1.operations import checked
from nodesmith.contracts.http.operation_groups import BulkBody, BulkResult, HistoryCleared, PendingView

router = APIRouter(prefix="/api/v1/operations", tags=["operations"], dependencies=[Depends(viewer)])


@router.get("/pending", responses=responses())
async def get_pending_work(deps: Deps) -> PendingView:
    """Open operations per node and per backend, and what they wait for."""
    nodes, backends = await deps.history.pending()
    return PendingView(total=sum(work.total for work in nodes), nodes=nodes, backends=backends)


@router.post("/cancel", responses=responses(400))
async def cancel_operations(body: BulkBody, request: Request, deps: Deps, actor: Operator) -> BulkResult:
    """Cancel every open operation that matches; `preview` lists them and cancels none."""
    checked(body)
    return _audited(request, body, await deps.bulk.cancel(body, actor=actor))


@router.post("/dismiss", responses=responses(400))
async def dismiss_operations(body: BulkBody, request: Request, deps: Deps, actor: Operator) -> BulkResult:
    """Dismiss every matching operation that ended badly; `preview` lists them and dismisses none."""
    del actor  # the audit trail records it
    checked(body)
    return _audited(request, body, await deps.bulk.dismiss(body))


@router.delete("/history", responses=responses(400))
async def clear_history(request: Request, deps: Deps, actor: Admin) -> HistoryCleared:
    """Empty the history for all users. Operations that need attention stay on the live list; the audit trail stays."""
    del actor  # the audit trail records it
    cleared = await deps.history.clear()
    auditing.record(request, target="history", after={"cleared": cleared})
    return HistoryCleared(cleared=cleared)


def _audited(request: Request, body: BulkBody, result: BulkResult) -> BulkResult:
    if body.preview:
        auditing.record_nothing(request)
        return result
    audited = body.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
    auditing.record(
        request, target="operations", after={**audited, "matched": result.matched, "accepted": result.accepted}
    )
    return result

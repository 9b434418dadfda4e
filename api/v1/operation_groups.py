"""Many operations at once: bulk cancel and dismiss, pending work, and emptying the history."""

from collections.abc import Sequence

from fastapi import APIRouter, Depends, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, Operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.v1.operations import checked
from nodesmith.api.views.shapes import views_of
from nodesmith.contracts.http.operation_groups import (
    BulkBody,
    BulkItem,
    BulkResult,
    HistoryCleared,
    PendingView,
    PendingWork,
)
from nodesmith.domain.operation_filter import OperationFilter
from nodesmith.services.operations.bulk_actions import ActionResult

router = APIRouter(prefix="/api/v1/operations", tags=["operations"], dependencies=[Depends(viewer)])


@router.get("/pending", responses=responses())
async def get_pending_work(deps: Deps) -> PendingView:
    """Open operations per node and per backend, and what they wait for."""
    nodes, backends = await deps.history.pending()
    total = sum(work.total for work in nodes)
    return PendingView(total=total, nodes=views_of(PendingWork, nodes), backends=views_of(PendingWork, backends))


@router.post("/cancel", responses=responses(400))
async def cancel_operations(body: BulkBody, request: Request, deps: Deps, actor: Operator) -> BulkResult:
    """Cancel every open operation that matches; `preview` lists them and cancels none."""
    wanted = _filter(body)
    if body.preview:
        return _previewed(request, await deps.bulk.preview_cancel(wanted))
    done = await deps.bulk.cancel(wanted, actor=actor, reason=body.reason, mode=body.mode)
    return _audited(request, body, done)


@router.post("/dismiss", responses=responses(400))
async def dismiss_operations(body: BulkBody, request: Request, deps: Deps, actor: Operator) -> BulkResult:
    """Dismiss every matching operation that ended badly; `preview` lists them and dismisses none."""
    del actor  # the audit trail records it
    wanted = _filter(body)
    if body.preview:
        return _previewed(request, await deps.bulk.preview_dismiss(wanted))
    return _audited(request, body, await deps.bulk.dismiss(wanted))


@router.delete("/history", responses=responses(400))
async def clear_history(request: Request, deps: Deps, actor: Admin) -> HistoryCleared:
    """Empty the history for all users. Operations that need attention stay on the live list; the audit trail stays."""
    del actor  # the audit trail records it
    cleared = await deps.history.clear()
    auditing.record(request, target="history", after={"cleared": cleared})
    return HistoryCleared(cleared=cleared)


def _filter(body: BulkBody) -> OperationFilter:
    return checked(OperationFilter(node=body.node, backend=body.backend, state=body.state, batch=body.batch))


def _previewed(request: Request, matched: Sequence[ActionResult]) -> BulkResult:
    auditing.record_nothing(request)
    return BulkResult(preview=True, matched=len(matched), operations=_items(matched))


def _audited(request: Request, body: BulkBody, done: Sequence[ActionResult]) -> BulkResult:
    accepted = sum(bool(each.accepted) for each in done)
    audited = body.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
    auditing.record(request, target="operations", after={**audited, "matched": len(done), "accepted": accepted})
    return BulkResult(preview=False, matched=len(done), accepted=accepted, operations=_items(done))


def _items(results: Sequence[ActionResult]) -> list[BulkItem]:
    return [
        BulkItem(
            op_id=each.operation.op_id,
            node_name=each.operation.node_name,
            backend=each.operation.backend,
            kind=each.operation.kind,
            state=each.operation.state,
            accepted=each.accepted,
            note=each.note,
        )
        for each in results
    ]

"""Many operations at once: history, pending work, and bulk cancel and dismiss."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, Operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.localai_views import history_entry
from nodesmith.api.problems import responses
from nodesmith.api.views.operations import operation_view
from nodesmith.contracts.http.operations import BulkBody, BulkResult, Done, HistoryPage, OperationFilter, PendingView
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.operation import State

router = APIRouter(prefix="/api/operations", tags=["operations"], dependencies=[Depends(viewer)])

NodeFilter = Annotated[str | None, Query(max_length=255, description="Only operations of this node, by id or name.")]
BackendFilter = Annotated[str | None, Query(max_length=255, description="Only operations of this backend.")]
StateFilter = Annotated[State | None, Query(description="Only operations that ended in this state.")]
BatchFilter = Annotated[str | None, Query(max_length=64, description="Only operations of this batch.")]
Since = Annotated[datetime | None, Query(description="Only operations that ended at or after this moment.")]
Until = Annotated[datetime | None, Query(description="Only operations that ended before this moment.")]
Cursor = Annotated[str, Query(max_length=1000, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many, newest first.")]


@router.get("/history", responses=responses(400))
async def get_history(
    deps: Deps,
    *,
    node: NodeFilter = None,
    backend: BackendFilter = None,
    state: StateFilter = None,
    batch: BatchFilter = None,
    since: Since = None,
    until: Until = None,
    cursor: Cursor = "",
    limit: Limit = 50,
) -> HistoryPage:
    """Operations that have ended, newest first; kept for 90 days. The same on every replica."""
    wanted = _checked(OperationFilter(node=node, backend=backend, state=state, batch=batch))
    times = {"since": _aware(since, "since"), "until": _aware(until, "until")}
    found, following = await deps.history.page(wanted, **times, cursor=cursor, limit=limit)
    return HistoryPage(
        operations=[history_entry(deps.with_link(operation_view(each))) for each in found], next=following
    )


@router.delete("/history", response_model_exclude_defaults=True, responses=responses(400))
async def clear_history(request: Request, deps: Deps, actor: Admin) -> Done:
    """Empty the history for all users. Operations that need attention stay on the live list; the audit trail stays."""
    del actor  # the audit trail records it
    auditing.record(request, target="history", after={"cleared": await deps.history.clear()})
    return Done(success=True)


@router.get("/pending", responses=responses())
async def get_pending(deps: Deps) -> PendingView:
    """Open operations per node and per backend, and what they wait for."""
    nodes, backends = await deps.history.pending()
    return PendingView(total=sum(work.total for work in nodes), nodes=nodes, backends=backends)


@router.post("/cancel", responses=responses(400))
async def cancel_many(body: BulkBody, request: Request, deps: Deps, actor: Operator) -> BulkResult:
    """Cancel every open operation that matches; `preview` lists them and cancels none."""
    _checked(body)
    return _audited(request, body, await deps.bulk.cancel(body, actor=actor))


@router.post("/dismiss", responses=responses(400))
async def dismiss_many(body: BulkBody, request: Request, deps: Deps, actor: Operator) -> BulkResult:
    """Dismiss every matching operation that ended badly; `preview` lists them and dismisses none."""
    del actor  # the audit trail records it
    _checked(body)
    return _audited(request, body, await deps.bulk.dismiss(body))


def _checked(wanted: OperationFilter) -> OperationFilter:
    if wanted.state is State.UNKNOWN:
        known = ", ".join(each for each in State if each is not State.UNKNOWN)
        raise InvalidRequest(f"state: There is no such state; use one of {known}.", field="state")
    if any("\0" in value for value in (wanted.node, wanted.backend, wanted.batch) if value):
        raise InvalidRequest("A name must not contain a NUL character.", field="node")
    return wanted


def _aware(moment: datetime | None, field: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidRequest(f"{field}: Add a time zone, as in 2026-11-16T12:00:00Z.", field=field)
    return moment


def _audited(request: Request, body: BulkBody, result: BulkResult) -> BulkResult:
    if body.preview:
        auditing.record_nothing(request)
        return result
    audited = body.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
    auditing.record(
        request, target="operations", after={**audited, "matched": result.matched, "accepted": result.accepted}
    )
    return result

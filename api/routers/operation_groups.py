"""Many operations at once: history, pending work, and orders by filter."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from api import auditing
from api.auth import Admin, Operator, viewer
from api.localai import history_entry
from api.parts import PartsOf
from api.problems import responses
from contracts.operation_http import BulkBody, BulkResult, Done, HistoryPage, OperationFilter, PendingView
from domain.errors import InvalidRequest
from domain.operation import State

router = APIRouter(prefix="/api/operations", tags=["operations"], dependencies=[Depends(viewer)])

NodeFilter = Annotated[str | None, Query(max_length=255, description="Only those of this node, by id or name.")]
BackendFilter = Annotated[str | None, Query(max_length=255, description="Only those of this backend.")]
StateFilter = Annotated[State | None, Query(description="Only those that ended so.")]
BatchFilter = Annotated[str | None, Query(max_length=64, description="Only those of this batch.")]
Since = Annotated[datetime | None, Query(description="Only those that ended at or after this moment.")]
Until = Annotated[datetime | None, Query(description="Only those that ended before this moment.")]
Cursor = Annotated[str, Query(max_length=1000, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many, the newest.")]


@router.get("/history", responses=responses(400))
async def get_history(
    parts: PartsOf,
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
    """What has ended, the newest end first; kept for 90 days. The same on every replica."""
    wanted = _checked(OperationFilter(node=node, backend=backend, state=state, batch=batch))
    times = {"since": _aware(since, "since"), "until": _aware(until, "until")}
    found, following = await parts.history.page(wanted, **times, cursor=cursor, limit=limit)
    return HistoryPage(operations=[history_entry(parts.with_link(each)) for each in found], next=following)


@router.delete("/history", response_model_exclude_defaults=True, responses=responses(400))
async def clear_history(request: Request, parts: PartsOf, actor: Admin) -> Done:
    """Empty the list of history, for everybody. What needs attention stays on the live list; the audit trail stays."""
    del actor  # the audit trail knows it
    auditing.tell(request, target="history", after={"cleared": await parts.history.clear()})
    return Done(success=True)


@router.get("/pending", responses=responses())
async def get_pending(parts: PartsOf) -> PendingView:
    """Open work per node and per backend, and what it waits for."""
    nodes, backends = await parts.history.pending()
    return PendingView(total=sum(work.total for work in nodes), nodes=nodes, backends=backends)


@router.post("/cancel", responses=responses(400))
async def cancel_many(body: BulkBody, request: Request, parts: PartsOf, actor: Operator) -> BulkResult:
    """Cancel every open operation that matches; `preview` shows them and cancels none."""
    _checked(body)
    return _audited(request, body, await parts.bulk.cancel(body, actor=actor))


@router.post("/dismiss", responses=responses(400))
async def dismiss_many(body: BulkBody, request: Request, parts: PartsOf, actor: Operator) -> BulkResult:
    """Dismiss every operation that ended badly and matches; `preview` shows them and dismisses none."""
    del actor  # the audit trail knows it
    _checked(body)
    return _audited(request, body, await parts.bulk.dismiss(body))


def _checked(wanted: OperationFilter) -> OperationFilter:
    if wanted.state is State.UNKNOWN:
        known = ", ".join(each for each in State if each is not State.UNKNOWN)
        raise InvalidRequest(f"state: There is no such state; use one of {known}.", field="state")
    if any("\0" in value for value in (wanted.node, wanted.backend, wanted.batch) if value):
        raise InvalidRequest("No name has a NUL character in it.", field="node")
    return wanted


def _aware(moment: datetime | None, field: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidRequest(f"{field}: Say the time zone too, as in 2026-11-16T12:00:00Z.", field=field)
    return moment


def _audited(request: Request, body: BulkBody, result: BulkResult) -> BulkResult:
    if body.preview:
        auditing.only_looked(request)
        return result
    said = body.model_dump(mode="json", exclude_defaults=True, exclude={"reason"})
    auditing.tell(request, target="operations", after={**said, "matched": result.matched, "accepted": result.accepted})
    return result

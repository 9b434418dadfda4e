"""Operations: list, start, details, cancel, retry, dismiss."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, operator, require_uri_right, viewer
from nodesmith.api.dependencies import Dependencies, Deps, IdempotencyKey
from nodesmith.api.health import TEMPORAL
from nodesmith.api.locations import declared_location, locate
from nodesmith.api.operation_start import start_operation
from nodesmith.api.problems import responses
from nodesmith.api.views.operations import operation_detail, operation_view
from nodesmith.api.views.shapes import view_of
from nodesmith.contracts.http.operations import (
    CancelAccepted,
    CancelBody,
    OperationAccepted,
    OperationBody,
    OperationDetail,
    OperationPage,
    RetryBody,
)
from nodesmith.domain.errors import InvalidRequest, NotDismissable, UnknownOperation
from nodesmith.domain.operation import State
from nodesmith.domain.operation_filter import OperationFilter, OperationScope

router = APIRouter(prefix="/api/v1/operations", tags=["operations"], dependencies=[Depends(viewer)])

OpId = Annotated[str, Path(description="Id of the operation.")]
Scope = Annotated[OperationScope, Query(description="`live`: open, or ended badly and not dismissed.")]
NodeFilter = Annotated[str | None, Query(max_length=255, description="Only operations of this node, by id or name.")]
BackendFilter = Annotated[str | None, Query(max_length=255, description="Only operations of this backend.")]
StateFilter = Annotated[State | None, Query(description="Only operations in this state.")]
BatchFilter = Annotated[str | None, Query(max_length=64, description="Only operations of this batch.")]
Since = Annotated[datetime | None, Query(description="With `scope=ended`: ended at or after this moment.")]
Until = Annotated[datetime | None, Query(description="With `scope=ended`: ended before this moment.")]
Cursor = Annotated[str, Query(max_length=1000, description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many.")]

_ORDERED = {**declared_location(202), **responses(400, 404, 409)}


@router.get("", responses=responses(400))
async def list_operations(
    deps: Deps,
    *,
    scope: Scope = OperationScope.LIVE,
    node: NodeFilter = None,
    backend: BackendFilter = None,
    state: StateFilter = None,
    batch: BatchFilter = None,
    since: Since = None,
    until: Until = None,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> OperationPage:
    """Operations, newest first; with `scope=ended` the latest end first. The same on every replica."""
    wanted = checked(OperationFilter(node=node, backend=backend, state=state, batch=batch))
    if scope is OperationScope.ENDED:
        times = {"since": _aware(since, "since"), "until": _aware(until, "until")}
        ended, following = await deps.history.page(wanted, **times, cursor=cursor, limit=limit)
        return OperationPage(items=[deps.with_link(operation_view(each)) for each in ended], next_cursor=following)
    if since is not None or until is not None:
        raise InvalidRequest("since and until: use them with scope=ended.", field="since" if since else "until")
    found = await deps.operations.listing(wanted, scope=scope, cursor=cursor, limit=limit)
    return OperationPage(
        items=[deps.with_link(operation_view(each)) for each in found.operations],
        next_cursor=found.next_cursor,
        last_event_id=found.last_event_id,
        stale_since=deps.health.down_since(TEMPORAL),
    )


@router.post("", status_code=202, responses=_ORDERED)
async def create_operation(
    body: OperationBody,
    request: Request,
    response: Response,
    deps: Deps,
    actor: Operator,
    *,
    key: IdempotencyKey = None,
) -> OperationAccepted:
    """Install, upgrade, roll back or remove a backend on one node. Durable once this has responded.

    A request with the same intent as an open operation joins it. It never waits for the node.
    """
    asked = body.without_target()
    return _located(response, await start_operation(request, deps, body.kind, body.node, asked, actor=actor, key=key))


@router.get("/{op_id}", responses=responses(400, 404))
async def get_operation(op_id: OpId, deps: Deps) -> OperationDetail:
    """One operation with its timeline, both read in one snapshot.

    To follow it, pass `id` of the last event to `GET /api/v1/events` as `Last-Event-ID`.
    """
    return await _known(deps, op_id)


@router.post("/{op_id}/cancel", status_code=202, responses=_ORDERED)
async def cancel_operation(
    op_id: OpId, request: Request, response: Response, deps: Deps, actor: Operator, *, body: CancelBody | None = None
) -> CancelAccepted:
    """Request a cancel: durable once this has responded, carried out as soon as the node can be reached."""
    asked = body or CancelBody()
    note = await deps.cancellation.cancel(op_id, actor=actor, reason=asked.reason, mode=asked.mode, force=asked.force)
    auditing.record_order(request, state=State.CANCELLING)
    locate(response, f"{router.prefix}/{op_id}")
    return CancelAccepted(op_id=op_id, state=State.CANCELLING, note=note)


@router.post("/{op_id}/retry", status_code=202, responses=_ORDERED)
async def retry_operation(
    op_id: OpId,
    request: Request,
    response: Response,
    deps: Deps,
    actor: Operator,
    *,
    body: RetryBody | None = None,
    key: IdempotencyKey = None,
) -> OperationAccepted:
    """Retry an operation that did not succeed: starts a new operation that names the old one.

    Retrying an install by uri needs the role for installs by uri.
    """
    require_uri_right(request, await deps.admission.named_uri(op_id))
    accepted = await deps.admission.retry(op_id, actor=actor, note=body.reason if body else "", idempotency_key=key)
    auditing.record(request, after={"node": accepted.node_name, "op_id": accepted.op_id})
    return _located(response, view_of(OperationAccepted, accepted))


@router.post("/{op_id}/dismiss", dependencies=[Depends(operator)], responses=responses(400, 404, 409))
async def dismiss_operation(op_id: OpId, deps: Deps) -> OperationDetail:
    """Remove an operation that ended badly from the live list; history keeps it. A second time changes nothing."""
    known = await _known(deps, op_id)
    if known.dismissed_at is None and not await deps.history.dismiss([op_id]):
        raise NotDismissable(
            f"Operation {op_id} is {known.state}: only operations that ended badly are dismissed.",
            op_id=op_id,
            state=known.state,
        )
    return await _known(deps, op_id)


def _located(response: Response, accepted: OperationAccepted) -> OperationAccepted:
    locate(response, f"{router.prefix}/{accepted.op_id}")
    return accepted


def checked(wanted: OperationFilter) -> OperationFilter:
    """Refuse what no operation can have."""
    if wanted.state is State.UNKNOWN:
        known = ", ".join(each for each in State if each is not State.UNKNOWN)
        raise InvalidRequest(f"state: There is no such state; use one of {known}.", field="state")
    if any("\0" in value for value in (wanted.node, wanted.backend, wanted.batch) if value):
        raise InvalidRequest("A name must not contain a NUL character.", field="node")
    return wanted


async def _known(deps: Dependencies, op_id: str) -> OperationDetail:
    found = await deps.operations.detail(op_id)
    if found is None:
        raise UnknownOperation(f"There is no operation {op_id}.", op_id=op_id)
    return deps.with_link(operation_detail(found))


def _aware(moment: datetime | None, field: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidRequest(f"{field}: Add a time zone, as in 2026-11-16T12:00:00Z.", field=field)
    return moment

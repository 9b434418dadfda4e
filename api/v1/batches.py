"""Batches: one request for many nodes."""

from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, require_uri_right, viewer
from nodesmith.api.batch_start import start_batch
from nodesmith.api.dependencies import Dependencies, Deps, IdempotencyKey
from nodesmith.api.locations import declared_location, locate
from nodesmith.api.problems import responses
from nodesmith.api.views.batches import batch_detail, batch_view
from nodesmith.api.views.shapes import fields_of, view_of
from nodesmith.contracts.http.batches import BatchAccepted, BatchDetail, BatchPlan, BatchRequest, BatchRetry, BatchView
from nodesmith.contracts.http.shared import Page, ReasonBody
from nodesmith.contracts.temporal.batches import batch_workflow_id
from nodesmith.domain.errors import UnknownBatch
from nodesmith.services.batches.batches import ORDERS
from nodesmith.services.requested_work import RequestedBatch

router = APIRouter(prefix="/api/v1/batches", tags=["batches"], dependencies=[Depends(viewer)])

Batch = TypeVar("Batch", bound=BatchView)
BatchId = Annotated[str, Path(description="Id of the batch.")]
OpenOnly = Annotated[bool, Query(alias="open", description="Only batches that have not ended.")]
Cursor = Annotated[str, Query(max_length=1000, description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many, newest first.")]

_ORDERED = {**declared_location(202), **responses(400, 404, 409)}


@router.get("", responses=responses(400))
async def list_batches(
    deps: Deps, *, open_only: OpenOnly = False, cursor: Cursor = "", limit: Limit = 100
) -> Page[BatchView]:
    """Batches, newest first."""
    found, following = await deps.batches.listing(open_only=open_only, cursor=cursor, limit=limit)
    return Page(items=[_with_link(deps, batch_view(each)) for each in found], next_cursor=following)


@router.post("", status_code=202, responses=_ORDERED)
async def create_batch(
    body: BatchRequest,
    request: Request,
    response: Response,
    deps: Deps,
    actor: Operator,
    *,
    key: IdempotencyKey = None,
) -> BatchAccepted:
    """Install, upgrade, roll back or remove on many nodes. Durable once this has responded."""
    return _located(response, await start_batch(request, deps, body, actor=actor, idempotency_key=key))


@router.post("/plan", responses=responses(400, 404, 409))
async def plan_batch(body: BatchRequest, request: Request, deps: Deps, _actor: Operator) -> BatchPlan:
    """What a batch would do on each node, and what it costs; starts nothing."""
    require_uri_right(request, body.uri)
    auditing.record_nothing(request)
    return view_of(BatchPlan, await deps.batch_service.plan(RequestedBatch(**fields_of(body))))


@router.get("/{batch_id}", responses=responses(400, 404))
async def get_batch(batch_id: BatchId, deps: Deps) -> BatchDetail:
    """One batch with all its nodes, read in one snapshot."""
    found = await deps.batches.detail(batch_id)
    if found is None:
        raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
    return _with_link(deps, batch_detail(found))


@router.post("/{batch_id}/retry", status_code=202, responses=_ORDERED)
async def retry_batch(
    batch_id: BatchId,
    request: Request,
    response: Response,
    deps: Deps,
    actor: Operator,
    *,
    body: BatchRetry | None = None,
    key: IdempotencyKey = None,
) -> BatchAccepted:
    """Start a new batch over nodes that did not succeed, with the same version, digest and limits; `select` says which.

    A 409 names the nodes if none of them can take it any more. Retrying an install by uri needs the role for installs
    by uri.
    """
    require_uri_right(request, await deps.batch_service.named_uri(batch_id))
    asked = body or BatchRetry()
    retried = await deps.batch_service.retry(
        batch_id, asked.select, actor=actor, reason=asked.reason, idempotency_key=key
    )
    accepted = view_of(BatchAccepted, retried)
    auditing.record(request, after=accepted.model_dump(mode="json"))
    return _located(response, accepted)


@router.post("/{batch_id}/pause", status_code=202, responses=_ORDERED)
async def pause_batch(
    batch_id: BatchId,
    request: Request,
    response: Response,
    deps: Deps,
    actor: Operator,
    *,
    body: ReasonBody | None = None,
) -> BatchView:
    """Running operations continue; no further ones are started. Answers with the batch as it is now."""
    locate(response, f"{router.prefix}/{batch_id}")
    return await _order(request, deps, batch_id, "pause", actor=actor, body=body)


@router.post("/{batch_id}/resume", status_code=202, responses=_ORDERED)
async def resume_batch(
    batch_id: BatchId,
    request: Request,
    response: Response,
    deps: Deps,
    actor: Operator,
    *,
    body: ReasonBody | None = None,
) -> BatchView:
    """End a pause. Answers with the batch as it is now."""
    locate(response, f"{router.prefix}/{batch_id}")
    return await _order(request, deps, batch_id, "resume", actor=actor, body=body)


@router.post("/{batch_id}/cancel", status_code=202, responses=_ORDERED)
async def cancel_batch(
    batch_id: BatchId,
    request: Request,
    response: Response,
    deps: Deps,
    actor: Operator,
    *,
    body: ReasonBody | None = None,
) -> BatchView:
    """Start nothing more, and cancel what this batch started; operations that it only joined continue.

    Answers with the batch as it is now.
    """
    locate(response, f"{router.prefix}/{batch_id}")
    return await _order(request, deps, batch_id, "cancel", actor=actor, body=body)


async def _order(
    request: Request, deps: Dependencies, batch_id: str, order: str, *, actor: str, body: ReasonBody | None
) -> BatchView:
    known = await deps.batches.find(batch_id)
    await deps.batch_service.order(batch_id, ORDERS[order], actor=actor, reason=body.reason if body else "")
    auditing.record(request, before={"state": known.state} if known else None, after={"order": order})
    found = await deps.batches.find(batch_id)
    if found is None:
        raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
    return _with_link(deps, batch_view(found))


def _located(response: Response, accepted: BatchAccepted) -> BatchAccepted:
    locate(response, f"{router.prefix}/{accepted.batch_id}")
    return accepted


def _with_link(deps: Dependencies, batch: Batch) -> Batch:
    return batch.model_copy(update={"temporal_url": deps.run_url(batch_workflow_id(batch.batch_id), "")})

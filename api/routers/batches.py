"""Batches: one request for many nodes; and the hold, which stops everything that has not reached a node."""

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, require_uri_right, viewer
from nodesmith.api.batch_start import start_batch
from nodesmith.api.dependencies import Deps, IdempotencyKey
from nodesmith.api.problems import responses
from nodesmith.api.views.batches import batch_detail, batch_view
from nodesmith.contracts.http.batches import BatchDetail, BatchView
from nodesmith.contracts.http.operations import HoldBody, HoldView
from nodesmith.contracts.http.shared import Message, ReasonBody
from nodesmith.contracts.temporal.batches import (
    BatchAccepted,
    BatchPlan,
    BatchRequest,
    BatchRetry,
    batch_workflow_id,
)
from nodesmith.domain.errors import UnknownBatch
from nodesmith.services.batches.batches import ORDERS

router = APIRouter(prefix="/api", tags=["batches"], dependencies=[Depends(viewer)])

Batch = TypeVar("Batch", bound=BatchView)
BatchId = Annotated[str, Path(description="Id of the batch.")]
OpenOnly = Annotated[bool, Query(alias="open", description="Only batches that have not ended.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many, newest first.")]

_PLAN: dict[int | str, dict[str, Any]] = {200: {"model": BatchPlan, "description": "The plan of a dry run."}}


@router.post(
    "/batches",
    name="start_batch",
    status_code=202,
    response_model=BatchAccepted,
    responses={**_PLAN, **responses(400, 404, 409)},
)
async def start(
    body: BatchRequest, request: Request, deps: Deps, actor: Operator, idempotency_key: IdempotencyKey = None
) -> BatchAccepted | JSONResponse:
    """Install, upgrade, roll back or remove on many nodes. `dry_run` returns the plan and starts nothing."""
    require_uri_right(request, body.uri)
    if body.dry_run:
        auditing.record_nothing(request)
        return JSONResponse((await deps.batch_service.plan(body)).model_dump(mode="json"))
    return await start_batch(request, deps, body, actor=actor, idempotency_key=idempotency_key)


@router.get("/batches", responses=responses(400))
async def list_batches(deps: Deps, *, open_only: OpenOnly = False, limit: Limit = 100) -> list[BatchView]:
    return [_with_link(deps, batch_view(each)) for each in await deps.batches.listing(open_only=open_only, limit=limit)]


@router.get("/batches/{batch_id}", responses=responses(400, 404))
async def get_batch(batch_id: BatchId, deps: Deps) -> BatchDetail:
    """One batch with all its nodes, read in one snapshot."""
    found = await deps.batches.detail(batch_id)
    if found is None:
        raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
    return _with_link(deps, batch_detail(found))


@router.post("/batches/{batch_id}/retry", status_code=202, responses=responses(400, 404, 409))
async def retry_batch(
    batch_id: BatchId,
    request: Request,
    deps: Deps,
    actor: Operator,
    *,
    body: BatchRetry | None = None,
    idempotency_key: IdempotencyKey = None,
) -> BatchAccepted:
    """Start a new batch over nodes that did not succeed, with the same version, digest and limits; `select` says which.

    A 409 names the nodes if none of them can take it any more. Retrying an install by uri needs the role for installs
    by uri.
    """
    require_uri_right(request, await deps.batch_service.named_uri(batch_id))
    accepted = await deps.batch_service.retry(batch_id, body, actor=actor, idempotency_key=idempotency_key)
    auditing.record(request, after=accepted.model_dump(mode="json"))
    return accepted


@router.post("/batches/{batch_id}/pause", responses=responses(400, 404, 409))
async def pause_batch(
    batch_id: BatchId, request: Request, deps: Deps, actor: Operator, body: ReasonBody | None = None
) -> Message:
    """Running operations continue; no further ones are started."""
    return await _order(request, deps, batch_id, "pause", actor=actor, because=body)


@router.post("/batches/{batch_id}/resume", responses=responses(400, 404, 409))
async def resume_batch(
    batch_id: BatchId, request: Request, deps: Deps, actor: Operator, body: ReasonBody | None = None
) -> Message:
    return await _order(request, deps, batch_id, "resume", actor=actor, because=body)


@router.post("/batches/{batch_id}/cancel", responses=responses(400, 404, 409))
async def cancel_batch(
    batch_id: BatchId, request: Request, deps: Deps, actor: Operator, body: ReasonBody | None = None
) -> Message:
    """Start nothing more, and cancel what this batch started; operations that it only joined continue."""
    return await _order(request, deps, batch_id, "cancel", actor=actor, because=body)


@router.get("/hold", responses=responses())
async def get_hold(deps: Deps) -> HoldView:
    return await deps.hold_service.current()


@router.post("/hold", responses=responses(400))
async def hold(body: HoldBody, request: Request, deps: Deps, actor: Operator) -> HoldView:
    """Nothing that has not reached a node starts, on any replica, until the hold is released."""
    before = await deps.hold_service.current()
    return _audited(request, before, await deps.hold_service.hold(body.reason, actor=actor))


@router.post("/release", responses=responses(400))
async def release(request: Request, deps: Deps, actor: Operator, body: ReasonBody | None = None) -> HoldView:
    del body  # the audit trail reads it
    before = await deps.hold_service.current()
    return _audited(request, before, await deps.hold_service.release(actor=actor))


def _audited(request: Request, before: HoldView, after: HoldView) -> HoldView:
    auditing.record(request, target="hold", before=before.model_dump(mode="json"), after=after.model_dump(mode="json"))
    return after


async def _order(
    request: Request, deps: Deps, batch_id: str, order: str, *, actor: str, because: ReasonBody | None
) -> Message:
    known = await deps.batches.find(batch_id)
    await deps.batch_service.order(batch_id, ORDERS[order], actor=actor, reason=because.reason if because else "")
    auditing.record(request, before={"state": known.state} if known else None, after={"order": order})
    return Message(message=f"batch {order} accepted")


def _with_link(deps: Deps, batch: Batch) -> Batch:
    return batch.model_copy(update={"temporal_url": deps.run_url(batch_workflow_id(batch.batch_id), "")})

"""Batches: one intent for many nodes; and the hold on everything that is not on a node yet."""

from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse

from api import auditing
from api.auth import Operator, viewer
from api.ordering import start_batch
from api.parts import IdempotencyKey, PartsOf
from api.problems import responses
from contracts.batches import (
    BatchAccepted,
    BatchDetail,
    BatchPlan,
    BatchRequest,
    BatchRetry,
    BatchView,
    batch_workflow_id,
)
from contracts.http import Because, Message
from contracts.operation_http import HoldBody, HoldView
from domain.errors import UnknownBatch
from services.batches import ORDERS

router = APIRouter(prefix="/api", tags=["batches"], dependencies=[Depends(viewer)])

Batch = TypeVar("Batch", bound=BatchView)
BatchId = Annotated[str, Path(description="Id of the batch.")]
OpenOnly = Annotated[bool, Query(alias="open", description="Only those that have not ended.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many, the newest.")]

_PLAN: dict[int | str, dict[str, Any]] = {200: {"model": BatchPlan, "description": "The plan of a dry run."}}


@router.post(
    "/batches",
    name="start_batch",
    status_code=202,
    response_model=BatchAccepted,
    responses={**_PLAN, **responses(400, 404, 409)},
)
async def start(
    body: BatchRequest, request: Request, parts: PartsOf, actor: Operator, idempotency_key: IdempotencyKey = None
) -> BatchAccepted | JSONResponse:
    """Install, upgrade, roll back or remove on many nodes. `dry_run` answers the plan and starts nothing."""
    if body.dry_run:
        auditing.only_looked(request)
        return JSONResponse((await parts.desk.plan(body)).model_dump(mode="json"))
    return await start_batch(request, parts, body, actor=actor, idempotency_key=idempotency_key)


@router.get("/batches", responses=responses(400))
async def list_batches(parts: PartsOf, *, open_only: OpenOnly = False, limit: Limit = 100) -> list[BatchView]:
    return [_with_link(parts, each) for each in await parts.batches.listing(open_only=open_only, limit=limit)]


@router.get("/batches/{batch_id}", responses=responses(400, 404))
async def get_batch(batch_id: BatchId, parts: PartsOf) -> BatchDetail:
    """One batch with every node of it, as they were at one moment."""
    found = await parts.batches.detail(batch_id)
    if found is None:
        raise UnknownBatch(f"There is no batch {batch_id}.", batch=batch_id)
    return _with_link(parts, found)


@router.post("/batches/{batch_id}/retry", status_code=202, responses=responses(400, 404, 409))
async def retry_batch(
    batch_id: BatchId,
    request: Request,
    parts: PartsOf,
    actor: Operator,
    *,
    body: BatchRetry | None = None,
    idempotency_key: IdempotencyKey = None,
) -> BatchAccepted:
    """A new batch over nodes that did not succeed, with the same version, digest and limits; `select` says which.

    A 409 names the nodes when none of them can take it any more.
    """
    accepted = await parts.desk.retry(batch_id, body, actor=actor, idempotency_key=idempotency_key)
    auditing.tell(request, after=accepted.model_dump(mode="json"))
    return accepted


@router.post("/batches/{batch_id}/pause", responses=responses(400, 404, 409))
async def pause_batch(
    batch_id: BatchId, request: Request, parts: PartsOf, actor: Operator, body: Because | None = None
) -> Message:
    """What runs goes on; nothing more is started."""
    return await _order(request, parts, batch_id, "pause", actor=actor, because=body)


@router.post("/batches/{batch_id}/resume", responses=responses(400, 404, 409))
async def resume_batch(
    batch_id: BatchId, request: Request, parts: PartsOf, actor: Operator, body: Because | None = None
) -> Message:
    return await _order(request, parts, batch_id, "resume", actor=actor, because=body)


@router.post("/batches/{batch_id}/cancel", responses=responses(400, 404, 409))
async def cancel_batch(
    batch_id: BatchId, request: Request, parts: PartsOf, actor: Operator, body: Because | None = None
) -> Message:
    """Nothing more is started, and what this batch started is cancelled; what it only joined goes on."""
    return await _order(request, parts, batch_id, "cancel", actor=actor, because=body)


@router.get("/hold", responses=responses())
async def get_hold(parts: PartsOf) -> HoldView:
    return await parts.holding.standing()


@router.post("/hold", responses=responses(400))
async def hold(body: HoldBody, request: Request, parts: PartsOf, actor: Operator) -> HoldView:
    """Nothing that is not on a node yet starts, on any replica, until it is released."""
    before = await parts.holding.standing()
    return _told(request, before, await parts.holding.hold(body.reason, actor=actor))


@router.post("/release", responses=responses(400))
async def release(request: Request, parts: PartsOf, actor: Operator, body: Because | None = None) -> HoldView:
    del body  # the audit trail reads it
    before = await parts.holding.standing()
    return _told(request, before, await parts.holding.release(actor=actor))


def _told(request: Request, before: HoldView, after: HoldView) -> HoldView:
    auditing.tell(request, target="hold", before=before.model_dump(mode="json"), after=after.model_dump(mode="json"))
    return after


async def _order(
    request: Request, parts: PartsOf, batch_id: str, order: str, *, actor: str, because: Because | None
) -> Message:
    known = await parts.batches.find(batch_id)
    await parts.desk.order(batch_id, ORDERS[order], actor=actor, reason=because.reason if because else "")
    auditing.tell(request, before={"state": known.state} if known else None, after={"order": order})
    return Message(message=f"batch {order} accepted")


def _with_link(parts: PartsOf, batch: Batch) -> Batch:
    return batch.model_copy(update={"temporal_url": parts.run_url(batch_workflow_id(batch.batch_id), "")})

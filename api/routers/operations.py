"""The operations: what goes on, how it went, and stopping it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from api import auditing
from api.auth import Operator, operator, viewer
from api.health import TEMPORAL
from api.localai import list_entry, list_order
from api.parts import IdempotencyKey, PartsOf
from api.problems import responses
from contracts.http import Because
from contracts.messages import CancelMode
from contracts.operation_http import (
    CancelAccepted,
    CancelBody,
    Dismissed,
    JobAccepted,
    OperationDetail,
    OperationList,
    RetryBody,
)
from domain.errors import InvalidRequest, UnknownOperation
from domain.operation import State
from services.batches import ORDERS

router = APIRouter(prefix="/api/operations", tags=["operations"], dependencies=[Depends(viewer)])

OpId = Annotated[str, Path(description="Id of the operation (the job id).")]
Everything = Annotated[bool, Query(alias="all", description="Also those that succeeded, were cancelled or dismissed.")]
NodeFilter = Annotated[str | None, Query(description="Only those of this node, by id or name.")]
StateFilter = Annotated[State | None, Query(description="Only those in this state.")]
BatchFilter = Annotated[str | None, Query(description="Only those of this batch.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many, the newest.")]


@router.get("", responses=responses(400))
async def list_operations(
    parts: PartsOf,
    *,
    everything: Everything = False,
    node: NodeFilter = None,
    state: StateFilter = None,
    batch: BatchFilter = None,
    limit: Limit = 500,
) -> OperationList:
    """The live list: what is open, and what ended badly until it is dismissed. `all` is newest first."""
    if state is State.UNKNOWN:
        known = ", ".join(each for each in State if each is not State.UNKNOWN)
        raise InvalidRequest(f"state: There is no such state; use one of {known}.", field="state")
    found = await parts.operations.listing(live=not everything, node=node, state=state, batch=batch, limit=limit)
    listed = found.operations if everything else sorted(found.operations, key=list_order)
    return OperationList(
        operations=[list_entry(parts.with_link(each)) for each in listed],
        last_event_id=found.last_event_id,
        stale_since=parts.health.down_since(TEMPORAL),
    )


@router.get("/{op_id}", responses=responses(400, 404))
async def get_operation(op_id: OpId, parts: PartsOf) -> OperationDetail:
    """One operation with its whole story, both as they were at one moment.

    To follow it from there, give `id` of the last event to `GET /api/events` as `Last-Event-ID`.
    """
    found = await parts.operations.detail(op_id)
    if found is None:
        raise UnknownOperation(f"There is no operation {op_id}.", op_id=op_id)
    return parts.with_link(found)


@router.post("/{op_id}/cancel", responses=responses(400, 404, 409))
async def cancel(
    op_id: OpId, request: Request, parts: PartsOf, actor: Operator, body: CancelBody | None = None
) -> CancelAccepted:
    """Ask for a cancel: durable once this has answered, carried out as soon as the node can be told.

    The id of a batch cancels the batch.
    """
    try:
        accepted = await parts.cancellation.cancel(op_id, body or CancelBody(), actor=actor)
    except UnknownOperation:
        if await parts.batches.find(op_id) is None:
            raise
        await parts.desk.order(op_id, ORDERS["cancel"], actor=actor, reason=body.reason if body else "")
        return CancelAccepted(state=State.CANCELLING, note="The batch starts nothing more; what it began is cancelled.")
    auditing.ordered(request, state=accepted.state)
    return accepted


@router.post("/{op_id}/pause", responses=responses(400, 404, 409))
async def pause(op_id: OpId, parts: PartsOf, actor: Operator, body: Because | None = None) -> CancelAccepted:
    """LocalAI's pause: a cancel that keeps what was downloaded; `retry` goes on from there. A batch is paused."""
    if await _is_batch(parts, op_id):
        await parts.desk.order(op_id, ORDERS["pause"], actor=actor)
        return CancelAccepted(message="Operation paused", state=State.WAITING, note="Resume it as a batch.")
    order = CancelBody(reason=body.reason if body else "", mode=CancelMode.KEEP)
    accepted = await parts.cancellation.cancel(op_id, order, actor=actor)
    return accepted.model_copy(update={"message": "Operation paused"})


@router.post("/{op_id}/retry", status_code=202, responses=responses(400, 404, 409))
async def retry(
    op_id: OpId,
    request: Request,
    parts: PartsOf,
    actor: Operator,
    *,
    body: RetryBody | None = None,
    key: IdempotencyKey = None,
) -> JobAccepted:
    """Ask again for an operation that did not succeed: a new one, that names the old."""
    note = body.reason if body else ""
    accepted = await parts.admission.retry(op_id, actor=actor, note=note, idempotency_key=key)
    auditing.tell(request, after={"node": accepted.node, "op_id": accepted.jobID})
    return accepted


@router.post("/{op_id}/dismiss", dependencies=[Depends(operator)], responses=responses(400))
async def dismiss(op_id: OpId, parts: PartsOf) -> Dismissed:
    """Take an operation that ended badly off the live list; history keeps it. Of a batch: all such members."""
    if await parts.history.dismiss(await _meant(parts, op_id)):
        return Dismissed(success=True, message="Operation dismissed")
    return Dismissed(success=False, message="There is nothing to dismiss: not an operation that ended badly")


async def _is_batch(parts: PartsOf, job_id: str) -> bool:
    """A batch id is a valid job id to LocalAI's clients."""
    return await parts.operations.find(job_id) is None and await parts.batches.find(job_id) is not None


async def _meant(parts: PartsOf, job_id: str) -> list[str]:
    if not await _is_batch(parts, job_id):
        return [job_id]
    return [each.op_id for each in await parts.batches.members(job_id) if each.op_id and not each.joined]

"""Operations: list, details, cancel, pause, retry, dismiss."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Operator, operator, require_uri_right, viewer
from nodesmith.api.dependencies import Deps, IdempotencyKey
from nodesmith.api.health import TEMPORAL
from nodesmith.api.localai_views import list_entry, list_order
from nodesmith.api.problems import responses
from nodesmith.api.views.operations import operation_detail, operation_view
from nodesmith.contracts.http.operations import (
    CancelAccepted,
    CancelBody,
    Dismissed,
    JobAccepted,
    OperationDetail,
    OperationList,
    RetryBody,
)
from nodesmith.contracts.http.shared import ReasonBody
from nodesmith.contracts.nats.messages import CancelMode
from nodesmith.domain.errors import InvalidRequest, UnknownOperation
from nodesmith.domain.operation import State
from nodesmith.services.batches.batches import ORDERS

router = APIRouter(prefix="/api/operations", tags=["operations"], dependencies=[Depends(viewer)])

OpId = Annotated[str, Path(description="Id of the operation (the job id).")]
Everything = Annotated[bool, Query(alias="all", description="Also succeeded, cancelled and dismissed ones.")]
NodeFilter = Annotated[str | None, Query(description="Only operations of this node, by id or name.")]
StateFilter = Annotated[State | None, Query(description="Only operations in this state.")]
BatchFilter = Annotated[str | None, Query(description="Only operations of this batch.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many, newest first.")]


@router.get("", responses=responses(400))
async def list_operations(
    deps: Deps,
    *,
    everything: Everything = False,
    node: NodeFilter = None,
    state: StateFilter = None,
    batch: BatchFilter = None,
    limit: Limit = 500,
) -> OperationList:
    """The live list: open operations, and those that ended badly until they are dismissed. `all`: newest first."""
    if state is State.UNKNOWN:
        known = ", ".join(each for each in State if each is not State.UNKNOWN)
        raise InvalidRequest(f"state: There is no such state; use one of {known}.", field="state")
    found = await deps.operations.listing(live=not everything, node=node, state=state, batch=batch, limit=limit)
    views = [deps.with_link(operation_view(each)) for each in found.operations]
    return OperationList(
        operations=[list_entry(each) for each in (views if everything else sorted(views, key=list_order))],
        last_event_id=found.last_event_id,
        stale_since=deps.health.down_since(TEMPORAL),
    )


@router.get("/{op_id}", responses=responses(400, 404))
async def get_operation(op_id: OpId, deps: Deps) -> OperationDetail:
    """One operation with its timeline, both read in one snapshot.

    To follow it, pass `id` of the last event to `GET /api/events` as `Last-Event-ID`.
    """
    found = await deps.operations.detail(op_id)
    if found is None:
        raise UnknownOperation(f"There is no operation {op_id}.", op_id=op_id)
    return deps.with_link(operation_detail(found))


@router.post("/{op_id}/cancel", responses=responses(400, 404, 409))
async def cancel(
    op_id: OpId, request: Request, deps: Deps, actor: Operator, body: CancelBody | None = None
) -> CancelAccepted:
    """Request a cancel: durable once this has responded, carried out as soon as the node can be reached.

    The id of a batch cancels the batch.
    """
    try:
        accepted = await deps.cancellation.cancel(op_id, body or CancelBody(), actor=actor)
    except UnknownOperation:
        if await deps.batches.find(op_id) is None:
            raise
        await deps.batch_service.order(op_id, ORDERS["cancel"], actor=actor, reason=body.reason if body else "")
        return CancelAccepted(state=State.CANCELLING, note="The batch starts nothing more and cancels what it started.")
    auditing.record_order(request, state=accepted.state)
    return accepted


@router.post("/{op_id}/pause", responses=responses(400, 404, 409))
async def pause(op_id: OpId, deps: Deps, actor: Operator, body: ReasonBody | None = None) -> CancelAccepted:
    """LocalAI's pause: cancel, but keep what was downloaded; `retry` continues from there. A batch is paused."""
    if await _is_batch(deps, op_id):
        await deps.batch_service.order(op_id, ORDERS["pause"], actor=actor)
        return CancelAccepted(message="Operation paused", state=State.WAITING, note="Resume it as a batch.")
    order = CancelBody(reason=body.reason if body else "", mode=CancelMode.KEEP)
    accepted = await deps.cancellation.cancel(op_id, order, actor=actor)
    return accepted.model_copy(update={"message": "Operation paused"})


@router.post("/{op_id}/retry", status_code=202, responses=responses(400, 404, 409))
async def retry(
    op_id: OpId,
    request: Request,
    deps: Deps,
    actor: Operator,
    *,
    body: RetryBody | None = None,
    key: IdempotencyKey = None,
) -> JobAccepted:
    """Retry an operation that did not succeed: starts a new operation that names the old one.

    Retrying an install by uri needs the role for installs by uri.
    """
    require_uri_right(request, await deps.admission.named_uri(op_id))
    note = body.reason if body else ""
    accepted = await deps.admission.retry(op_id, actor=actor, note=note, idempotency_key=key)
    auditing.record(request, after={"node": accepted.node, "op_id": accepted.jobID})
    return accepted


@router.post("/{op_id}/dismiss", dependencies=[Depends(operator)], responses=responses(400))
async def dismiss(op_id: OpId, deps: Deps) -> Dismissed:
    """Remove an operation that ended badly from the live list; history keeps it. For a batch: all such members."""
    if await deps.history.dismiss(await _meant(deps, op_id)):
        return Dismissed(success=True, message="Operation dismissed")
    return Dismissed(success=False, message="There is nothing to dismiss: not an operation that ended badly")


async def _is_batch(deps: Deps, job_id: str) -> bool:
    """LocalAI's clients use a batch id as a job id."""
    return await deps.operations.find(job_id) is None and await deps.batches.find(job_id) is not None


async def _meant(deps: Deps, job_id: str) -> list[str]:
    if not await _is_batch(deps, job_id):
        return [job_id]
    return [each.op_id for each in await deps.batches.members(job_id) if each.op_id and not each.joined]

"""LocalAI's operations: the live list, cancel, pause, dismiss, and the history. A batch id counts as a job id."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from nodesmith.api import auditing
from nodesmith.api.auth import Admin, Operator, operator, viewer
from nodesmith.api.dependencies import Dependencies, Deps
from nodesmith.api.localai.views import history_entry, list_entry, list_order
from nodesmith.api.problems import responses
from nodesmith.api.views.operations import operation_view
from nodesmith.contracts.http.localai import LocalaiHistory, LocalaiOperations
from nodesmith.contracts.http.operations import CancelBody, Done
from nodesmith.contracts.http.shared import ReasonBody
from nodesmith.contracts.nats.messages import CancelMode
from nodesmith.domain.errors import UnknownOperation
from nodesmith.domain.operation import State
from nodesmith.domain.operation_filter import OperationFilter
from nodesmith.services.batches.batches import ORDERS

router = APIRouter(prefix="/api/operations", tags=["LocalAI"], dependencies=[Depends(viewer)])

JobId = Annotated[str, Path(description="Id of an operation or of a batch.")]

_MOST_LISTED = 1000
_HISTORY = 50
"""length of LocalAI's history"""


@router.get("", response_model_exclude_none=True, responses=responses())
async def list_jobs(deps: Deps) -> LocalaiOperations:
    """Open operations, and those that ended badly until they are dismissed; least progress first."""
    found = await deps.operations.listing(limit=_MOST_LISTED)
    views = [operation_view(each) for each in found.operations]
    return LocalaiOperations(operations=[list_entry(each) for each in sorted(views, key=list_order)])


@router.get("/history", response_model_exclude_none=True, responses=responses())
async def list_ended_jobs(deps: Deps) -> LocalaiHistory:
    """The last 50 operations that ended, the latest end first."""
    found, _ = await deps.history.page(OperationFilter(), limit=_HISTORY)
    return LocalaiHistory(operations=[history_entry(operation_view(each)) for each in found])


@router.delete("/history", response_model_exclude_defaults=True, responses=responses(400))
async def clear_ended_jobs(request: Request, deps: Deps, actor: Admin) -> Done:
    """Empty the history for all users; what needs attention stays on the live list."""
    del actor  # the audit trail records it
    auditing.record(request, target="history", after={"cleared": await deps.history.clear()})
    return Done(success=True)


@router.post("/{op_id}/cancel", responses=responses(400, 404, 409))
async def cancel_job(
    op_id: JobId, request: Request, deps: Deps, actor: Operator, body: CancelBody | None = None
) -> Done:
    """Request a cancel of an operation or a batch."""
    order = body or CancelBody()
    try:
        await deps.cancellation.cancel(op_id, actor=actor, reason=order.reason, mode=order.mode, force=order.force)
    except UnknownOperation:
        if await deps.batches.find(op_id) is None:
            raise
        await deps.batch_service.order(op_id, ORDERS["cancel"], actor=actor, reason=order.reason)
    else:
        auditing.record_order(request, state=State.CANCELLING)
    return Done(success=True, message="Operation cancelled")


@router.post("/{op_id}/pause", responses=responses(400, 404, 409))
async def pause_job(op_id: JobId, deps: Deps, actor: Operator, body: ReasonBody | None = None) -> Done:
    """Cancel an operation, but keep what was downloaded: a retry continues from there. A batch is paused."""
    if await _is_batch(deps, op_id):
        await deps.batch_service.order(op_id, ORDERS["pause"], actor=actor)
    else:
        reason = body.reason if body else ""
        await deps.cancellation.cancel(op_id, actor=actor, reason=reason, mode=CancelMode.KEEP)
    return Done(success=True, message="Operation paused")


@router.post("/{op_id}/dismiss", dependencies=[Depends(operator)], responses=responses(400))
async def dismiss_job(op_id: JobId, deps: Deps) -> Done:
    """Remove an operation that ended badly from the live list; of a batch, all such members."""
    if await deps.history.dismiss(await _operations_of(deps, op_id)):
        return Done(success=True, message="Operation dismissed")
    return Done(success=False, message="There is nothing to dismiss: not an operation that ended badly")


async def _is_batch(deps: Dependencies, job_id: str) -> bool:
    return await deps.operations.find(job_id) is None and await deps.batches.find(job_id) is not None


async def _operations_of(deps: Dependencies, job_id: str) -> list[str]:
    if not await _is_batch(deps, job_id):
        return [job_id]
    return [each.op_id for each in await deps.batches.members(job_id) if each.op_id and not each.joined]

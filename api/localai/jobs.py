"""LocalAI's job API: the status of an operation or batch, and the synchronous removal."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse

from nodesmith.api.auth import Operator, viewer
from nodesmith.api.batch_start import start_batch
from nodesmith.api.dependencies import BackendName, Deps, IdempotencyKey
from nodesmith.api.localai.views import batch_op_status, batch_succeeded, op_status
from nodesmith.api.problems import respond, responses
from nodesmith.api.views.batches import batch_detail
from nodesmith.api.views.operations import operation_view
from nodesmith.api.wait_for_end import batch_end
from nodesmith.contracts.http.batches import BatchRequest
from nodesmith.contracts.http.localai import OpStatus
from nodesmith.contracts.http.operations import Done
from nodesmith.domain.errors import NoAnswer
from nodesmith.domain.kinds import Kind

router = APIRouter(tags=["LocalAI"])

UNKNOWN_ID = "could not find any status for ID"


@router.get(
    "/backends/jobs/{job_id}",
    dependencies=[Depends(viewer)],
    response_model=OpStatus,
    response_model_exclude_none=True,
    responses=responses(400),
)
async def get_op_status(
    job_id: Annotated[str, Path(description="Id of an operation or of a batch.")], request: Request, deps: Deps
) -> OpStatus | JSONResponse:
    """LocalAI's OpStatus. An unknown id is a 500, as its clients expect."""
    if operation := await deps.operations.find(job_id):
        return op_status(operation_view(operation))
    if batch := await deps.batches.detail(job_id):
        return batch_op_status(batch_detail(batch))
    return respond(request, 500, "unknown_operation", UNKNOWN_ID)


@router.post("/api/backends/system/delete/{backend}", response_model=Done, responses=responses(400, 404, 409, 504))
async def delete_everywhere_and_wait(
    backend: BackendName,
    request: Request,
    deps: Deps,
    actor: Operator,
    key: IdempotencyKey = None,
) -> Done | JSONResponse:
    """Remove a backend from all nodes and wait up to two minutes. 504: the removal continues under the named job id."""
    batch_request = BatchRequest(kind=Kind.REMOVE, backend=backend, everywhere=True)
    batch_id = (await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key)).batch_id
    ended = await batch_end(deps, batch_id)
    if ended is None:
        raise NoAnswer(f"{backend} is still being removed; batch {batch_id} continues.", batch=batch_id)
    batch = batch_detail(ended)
    if not batch_succeeded(batch):
        status = batch_op_status(batch)
        return respond(request, 500, "operation_failed", status.error or batch.message, facts={"batch": batch_id})
    return Done(success=True, message="Backend deleted successfully")

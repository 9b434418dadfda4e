"""LocalAI's API flavour of a job: its status, of an operation or of a batch; and the removal that is waited for."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import JSONResponse

from api.auth import Operator, viewer
from api.awaiting import batch_end
from api.localai import batch_op_status, batch_went_well, op_status
from api.ordering import start_batch
from api.parts import IdempotencyKey, PartsOf
from api.problems import respond, responses
from contracts.batches import BatchRequest
from contracts.localai_http import OpStatus
from contracts.operation_http import Done
from domain.errors import NoAnswer
from domain.operation import Kind

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
    job_id: Annotated[str, Path(description="Id of an operation or of a batch.")], request: Request, parts: PartsOf
) -> OpStatus | JSONResponse:
    """LocalAI's OpStatus. An id that nobody knows is a 500, as its clients expect."""
    if operation := await parts.operations.find(job_id):
        return op_status(operation)
    if batch := await parts.batches.detail(job_id):
        return batch_op_status(batch)
    return respond(request, 500, "unknown_operation", UNKNOWN_ID)


@router.post("/api/backends/system/delete/{backend}", response_model=Done, responses=responses(400, 404, 409, 504))
async def delete_everywhere_and_wait(
    backend: Annotated[str, Path(description="Name of the backend.")],
    request: Request,
    parts: PartsOf,
    actor: Operator,
    key: IdempotencyKey = None,
) -> Done | JSONResponse:
    """Remove a backend wherever it is and wait up to two minutes. 504: it goes on, under the job id that is named."""
    asked = BatchRequest(kind=Kind.REMOVE, backend=backend, everywhere=True)
    batch_id = (await start_batch(request, parts, asked, actor=actor, idempotency_key=key)).batch_id
    ended = await batch_end(parts, batch_id)
    if ended is None:
        raise NoAnswer(f"{backend} is still being removed: batch {batch_id} goes on.", batch=batch_id)
    if not batch_went_well(ended):
        status = batch_op_status(ended)
        return respond(request, 500, "operation_failed", status.error or ended.message, facts={"batch": batch_id})
    return Done(success=True, message="Backend deleted successfully")

"""The catalogue of backends, and LocalAI's job status."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from api.auth import viewer
from api.localai import batch_job_status, job_status
from api.parts import PartsOf
from api.problems import responses
from contracts.http import BackendCatalogue, JobStatus

router = APIRouter(prefix="/api/backends", tags=["backends"], dependencies=[Depends(viewer)])


@router.get("", responses=responses())
async def list_backends(parts: PartsOf) -> BackendCatalogue:
    """What can be installed by name."""
    return BackendCatalogue(backends=parts.catalogue.entries())


@router.get("/job/{job_id}", response_model_exclude_none=True, responses=responses(400))
async def get_job(job_id: Annotated[str, Path(description="The jobID of an install.")], parts: PartsOf) -> JobStatus:
    """LocalAI's job status: `queued` for an id that nobody knows."""
    operation = await parts.operations.find(job_id)
    return job_status(operation) if operation else batch_job_status(await parts.batches.find(job_id))

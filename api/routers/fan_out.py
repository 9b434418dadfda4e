"""LocalAI's routes that concern every node: each starts a batch, whose id is the job id."""

from typing import Annotated

from fastapi import APIRouter, Path

from api.auth import Operator
from api.parts import PartsOf
from api.problems import responses
from contracts.batches import BatchAccepted, BatchRequest
from contracts.localai_http import ApplyRequest, ExternalRequest, JobReference, LocalaiJob
from domain.operation import Kind

router = APIRouter(tags=["LocalAI"])

Backend = Annotated[str, Path(description="Name of the backend, `gallery@name` if need be.")]
UNLIMITED = 0


@router.post("/api/backends/install/{backend}", responses=responses(400, 404, 409))
async def install_everywhere(backend: Backend, parts: PartsOf, actor: Operator) -> LocalaiJob:
    """Install on every node that can take it; a reinstall where it is there already."""
    request = BatchRequest(kind=Kind.INSTALL, backend=backend, everywhere=True, force=True, max_parallel=UNLIMITED)
    return _ui(await parts.desk.start(request, actor=actor), "Backend installation started")


@router.post("/api/backends/install-external", responses=responses(400, 404, 409))
async def install_external(body: ExternalRequest, parts: PartsOf, actor: Operator) -> LocalaiJob:
    request = BatchRequest(
        kind=Kind.INSTALL, uri=body.uri, name=body.name, alias=body.alias, everywhere=True, max_parallel=UNLIMITED
    )
    return _ui(await parts.desk.start(request, actor=actor), "External backend installation started")


@router.post("/api/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade_everywhere(backend: Backend, parts: PartsOf, actor: Operator) -> LocalaiJob:
    """Upgrade on every node that has it."""
    return _ui(await _start(parts, Kind.UPGRADE, backend, actor), "Backend upgrade started")


@router.post("/api/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete_everywhere(backend: Backend, parts: PartsOf, actor: Operator) -> LocalaiJob:
    return _ui(await _start(parts, Kind.REMOVE, backend, actor), "Backend deletion started")


@router.post("/backends/apply", responses=responses(400, 404, 409))
async def apply(body: ApplyRequest, parts: PartsOf, actor: Operator) -> JobReference:
    request = BatchRequest(
        kind=Kind.INSTALL, backend=body.id, everywhere=True, force=body.force, max_parallel=UNLIMITED
    )
    return _reference(await parts.desk.start(request, actor=actor))


@router.post("/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade(backend: Backend, parts: PartsOf, actor: Operator) -> JobReference:
    return _reference(await _start(parts, Kind.UPGRADE, backend, actor))


@router.post("/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete(backend: Backend, parts: PartsOf, actor: Operator) -> JobReference:
    return _reference(await _start(parts, Kind.REMOVE, backend, actor))


async def _start(parts: PartsOf, kind: Kind, backend: str, actor: str) -> BatchAccepted:
    request = BatchRequest(kind=kind, backend=backend, everywhere=True)
    return await parts.desk.start(request, actor=actor)


def _ui(batch: BatchAccepted, message: str) -> LocalaiJob:
    return LocalaiJob(jobID=batch.batch_id, uuid=batch.batch_id, statusUrl=batch.statusUrl, message=message)


def _reference(batch: BatchAccepted) -> JobReference:
    return JobReference(id=batch.batch_id, uuid=batch.batch_id, status_url=f"/backends/jobs/{batch.batch_id}")

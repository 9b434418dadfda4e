"""LocalAI's routes that concern every node: each starts a batch, whose id is the job id."""

from typing import Annotated

from fastapi import APIRouter, Path, Request

from api.auth import Operator
from api.ordering import start_batch
from api.parts import IdempotencyKey, PartsOf
from api.problems import responses
from contracts.batches import BatchAccepted, BatchRequest
from contracts.localai_http import ApplyRequest, ExternalRequest, JobReference, LocalaiJob
from domain.operation import Kind

router = APIRouter(tags=["LocalAI"])

Backend = Annotated[str, Path(description="Name of the backend, `gallery@name` if need be.")]
UNLIMITED = 0


@router.post("/api/backends/install/{backend}", responses=responses(400, 404, 409))
async def install_everywhere(
    backend: Backend, request: Request, parts: PartsOf, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    """Install on every node that can take it; a reinstall where it is there already."""
    asked = BatchRequest(kind=Kind.INSTALL, backend=backend, everywhere=True, force=True, max_parallel=UNLIMITED)
    return _ui(
        await start_batch(request, parts, asked, actor=actor, idempotency_key=key), "Backend installation started"
    )


@router.post("/api/backends/install-external", responses=responses(400, 404, 409))
async def install_external(
    body: ExternalRequest, request: Request, parts: PartsOf, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    asked = BatchRequest(
        kind=Kind.INSTALL, uri=body.uri, name=body.name, alias=body.alias, everywhere=True, max_parallel=UNLIMITED
    )
    return _ui(
        await start_batch(request, parts, asked, actor=actor, idempotency_key=key),
        "External backend installation started",
    )


@router.post("/api/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade_everywhere(
    backend: Backend, request: Request, parts: PartsOf, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    """Upgrade on every node that has it."""
    return _ui(await _start(request, parts, Kind.UPGRADE, backend, actor=actor, key=key), "Backend upgrade started")


@router.post("/api/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete_everywhere(
    backend: Backend, request: Request, parts: PartsOf, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    return _ui(await _start(request, parts, Kind.REMOVE, backend, actor=actor, key=key), "Backend deletion started")


@router.post("/backends/apply", responses=responses(400, 404, 409))
async def apply(
    body: ApplyRequest, request: Request, parts: PartsOf, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    asked = BatchRequest(kind=Kind.INSTALL, backend=body.id, everywhere=True, force=body.force, max_parallel=UNLIMITED)
    return _reference(await start_batch(request, parts, asked, actor=actor, idempotency_key=key))


@router.post("/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade(
    backend: Backend, request: Request, parts: PartsOf, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    return _reference(await _start(request, parts, Kind.UPGRADE, backend, actor=actor, key=key))


@router.post("/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete(
    backend: Backend, request: Request, parts: PartsOf, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    return _reference(await _start(request, parts, Kind.REMOVE, backend, actor=actor, key=key))


async def _start(
    request: Request, parts: PartsOf, kind: Kind, backend: str, *, actor: str, key: str | None
) -> BatchAccepted:
    asked = BatchRequest(kind=kind, backend=backend, everywhere=True)
    return await start_batch(request, parts, asked, actor=actor, idempotency_key=key)


def _ui(batch: BatchAccepted, message: str) -> LocalaiJob:
    return LocalaiJob(jobID=batch.batch_id, uuid=batch.batch_id, statusUrl=batch.statusUrl, message=message)


def _reference(batch: BatchAccepted) -> JobReference:
    return JobReference(id=batch.batch_id, uuid=batch.batch_id, status_url=f"/backends/jobs/{batch.batch_id}")

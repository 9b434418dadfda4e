"""LocalAI's routes for all nodes: each starts a batch, whose id is the job id."""

from fastapi import APIRouter, Request

from nodesmith.api.auth import Operator
from nodesmith.api.batch_start import start_batch
from nodesmith.api.dependencies import BackendName, Deps, IdempotencyKey
from nodesmith.api.problems import responses
from nodesmith.contracts.http.localai import ApplyRequest, ExternalRequest, JobReference, LocalaiJob
from nodesmith.contracts.temporal.batches import BatchAccepted, BatchRequest
from nodesmith.domain.kinds import Kind

router = APIRouter(tags=["LocalAI"])

UNLIMITED = 0


@router.post("/api/backends/install/{backend}", responses=responses(400, 404, 409))
async def install_everywhere(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    """Install on every suitable node; reinstall where it is already installed."""
    batch_request = BatchRequest(
        kind=Kind.INSTALL, backend=backend, everywhere=True, force=True, max_parallel=UNLIMITED
    )
    return _ui(
        await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key),
        "Backend installation started",
    )


@router.post("/api/backends/install-external", responses=responses(400, 404, 409))
async def install_external(
    body: ExternalRequest, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    batch_request = BatchRequest(
        kind=Kind.INSTALL, uri=body.uri, name=body.name, alias=body.alias, everywhere=True, max_parallel=UNLIMITED
    )
    return _ui(
        await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key),
        "External backend installation started",
    )


@router.post("/api/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade_everywhere(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    """Upgrade on every node that has the backend."""
    return _ui(await _start(request, deps, Kind.UPGRADE, backend, actor=actor, key=key), "Backend upgrade started")


@router.post("/api/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete_everywhere(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> LocalaiJob:
    return _ui(await _start(request, deps, Kind.REMOVE, backend, actor=actor, key=key), "Backend deletion started")


@router.post("/backends/apply", responses=responses(400, 404, 409))
async def apply(
    body: ApplyRequest, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    batch_request = BatchRequest(
        kind=Kind.INSTALL, backend=body.id, everywhere=True, force=body.force, max_parallel=UNLIMITED
    )
    return _reference(await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key))


@router.post("/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    return _reference(await _start(request, deps, Kind.UPGRADE, backend, actor=actor, key=key))


@router.post("/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    return _reference(await _start(request, deps, Kind.REMOVE, backend, actor=actor, key=key))


async def _start(
    request: Request, deps: Deps, kind: Kind, backend: str, *, actor: str, key: str | None
) -> BatchAccepted:
    batch_request = BatchRequest(kind=kind, backend=backend, everywhere=True)
    return await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key)


def _ui(batch: BatchAccepted, message: str) -> LocalaiJob:
    return LocalaiJob(jobID=batch.batch_id, uuid=batch.batch_id, statusUrl=batch.statusUrl, message=message)


def _reference(batch: BatchAccepted) -> JobReference:
    return JobReference(id=batch.batch_id, uuid=batch.batch_id, status_url=f"/backends/jobs/{batch.batch_id}")

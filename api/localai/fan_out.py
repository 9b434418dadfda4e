"""LocalAI's routes for all nodes: each starts a batch, whose id is the job id."""

from fastapi import APIRouter, Request

from nodesmith.api.auth import Operator
from nodesmith.api.batch_start import start_batch
from nodesmith.api.dependencies import BackendName, Deps, IdempotencyKey
from nodesmith.api.localai.views import fleet_job, job_reference
from nodesmith.api.problems import responses
from nodesmith.contracts.http.batches import BatchAccepted, BatchRequest
from nodesmith.contracts.http.localai import ApplyRequest, ExternalRequest, FleetJob, JobReference
from nodesmith.domain.kinds import Kind

router = APIRouter(tags=["LocalAI"])

UNLIMITED = 0


@router.post("/api/backends/install/{backend}", responses=responses(400, 404, 409))
async def install_everywhere(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> FleetJob:
    """Install on every suitable node; reinstall where it is already installed."""
    batch_request = BatchRequest(
        kind=Kind.INSTALL, backend=backend, everywhere=True, force=True, max_parallel=UNLIMITED
    )
    return fleet_job(
        await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key),
        "Backend installation started",
    )


@router.post("/api/backends/install-external", responses=responses(400, 404, 409))
async def install_external(
    body: ExternalRequest, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> FleetJob:
    """Install by uri on every suitable node."""
    batch_request = BatchRequest(
        kind=Kind.INSTALL, uri=body.uri, name=body.name, alias=body.alias, everywhere=True, max_parallel=UNLIMITED
    )
    return fleet_job(
        await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key),
        "External backend installation started",
    )


@router.post("/api/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade_everywhere(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> FleetJob:
    """Upgrade on every node that has the backend."""
    return fleet_job(
        await _start(request, deps, Kind.UPGRADE, backend, actor=actor, key=key), "Backend upgrade started"
    )


@router.post("/api/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete_everywhere(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> FleetJob:
    """Remove from every node that has the backend."""
    return fleet_job(
        await _start(request, deps, Kind.REMOVE, backend, actor=actor, key=key), "Backend deletion started"
    )


@router.post("/backends/apply", responses=responses(400, 404, 409))
async def apply_backend(
    body: ApplyRequest, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    """Install on every suitable node."""
    batch_request = BatchRequest(
        kind=Kind.INSTALL, backend=body.id, everywhere=True, force=body.force, max_parallel=UNLIMITED
    )
    started = await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key)
    return job_reference(started, request.base_url)


@router.post("/backends/upgrade/{backend}", responses=responses(400, 404, 409))
async def upgrade_backend(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    """Upgrade on every node that has the backend."""
    started = await _start(request, deps, Kind.UPGRADE, backend, actor=actor, key=key)
    return job_reference(started, request.base_url)


@router.post("/backends/delete/{backend}", responses=responses(400, 404, 409))
async def delete_backend(
    backend: BackendName, request: Request, deps: Deps, actor: Operator, key: IdempotencyKey = None
) -> JobReference:
    """Remove from every node that has the backend."""
    started = await _start(request, deps, Kind.REMOVE, backend, actor=actor, key=key)
    return job_reference(started, request.base_url)


async def _start(
    request: Request, deps: Deps, kind: Kind, backend: str, *, actor: str, key: str | None
) -> BatchAccepted:
    batch_request = BatchRequest(kind=kind, backend=backend, everywhere=True)
    return await start_batch(request, deps, batch_request, actor=actor, idempotency_key=key)

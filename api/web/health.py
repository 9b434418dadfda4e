"""Liveness and readiness."""

from fastapi import APIRouter, Depends, Response

from nodesmith.api.auth import anyone
from nodesmith.api.dependencies import Deps
from nodesmith.contracts.http.shared import Message, Readiness

router = APIRouter(tags=["health"], dependencies=[Depends(anyone)])


@router.get("/healthz")
async def alive() -> Message:
    """The process runs; no other server is checked."""
    return Message(message="alive")


@router.get("/readyz", responses={503: {"model": Readiness, "description": "A required server does not answer"}})
async def ready(deps: Deps, response: Response) -> Readiness:
    """Whether every required server answers; `degraded` names the others that do not, with a 200."""
    readiness = await deps.health.readiness()
    if not readiness.ready:
        response.status_code = 503
    return readiness

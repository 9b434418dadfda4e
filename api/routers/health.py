"""Health: alive, and ready."""

from fastapi import APIRouter, Depends, Response

from api.auth import anyone
from api.parts import PartsOf
from contracts.http import Message, Readiness

router = APIRouter(tags=["health"], dependencies=[Depends(anyone)])


@router.get("/healthz")
async def alive() -> Message:
    """The process is there; asks nobody else."""
    return Message(message="alive")


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Something is missing"}})
async def ready(parts: PartsOf, response: Response) -> Readiness:
    """Whether everything answers that is needed, and what does not; `degraded` names the rest, with a 200."""
    readiness = await parts.health.readiness()
    if not readiness.ready:
        response.status_code = 503
    return readiness

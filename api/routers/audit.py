"""The audit trail: who changed what, and why."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime

from nodesmith.api.auth import viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.contracts.http.access import AuditPage

router = APIRouter(prefix="/api/audit", tags=["audit"], dependencies=[Depends(viewer)])

_BIGGEST = 2**63 - 1

Actor = Annotated[str | None, Query(description="Only changes by this actor: the name of a token.")]
Target = Annotated[str | None, Query(description="Only changes of this node, operation or token: name or id.")]
Action = Annotated[str | None, Query(description="Only this action: nodes.approve, tokens.create, ...")]
Since = Annotated[AwareDatetime | None, Query(description="From this moment on.")]
Until = Annotated[AwareDatetime | None, Query(description="Before this moment.")]
BeforeId = Annotated[int | None, Query(ge=1, le=_BIGGEST, description="For the next page: `next` of the previous one.")]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("", name="list", responses=responses(400))
async def read_audit(
    deps: Deps,
    *,
    actor: Actor = None,
    target: Target = None,
    action: Action = None,
    since: Since = None,
    until: Until = None,
    before_id: BeforeId = None,
    limit: Limit = 100,
) -> AuditPage:
    """Every change of the last 400 days, the newest first."""
    found = await deps.audit.entries(
        actor=actor, target=target, action=action, since=since, until=until, before_id=before_id, limit=limit + 1
    )
    page = list(found[:limit])
    return AuditPage(entries=page, next=page[-1].id if len(found) > limit else None)

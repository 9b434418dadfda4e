"""The audit trail: who changed what, and why."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime

from nodesmith.api.auth import viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.views.shapes import views_of
from nodesmith.contracts.http.access import AuditEntry
from nodesmith.contracts.http.shared import Page

router = APIRouter(prefix="/api/v1/audit", tags=["audit"], dependencies=[Depends(viewer)])

Actor = Annotated[str | None, Query(description="Only changes by this actor: the name of a token.")]
Target = Annotated[str | None, Query(description="Only changes of this node, operation or token: name or id.")]
Action = Annotated[str | None, Query(description="Only this action: nodes.approve, tokens.create, ...")]
Since = Annotated[AwareDatetime | None, Query(description="From this moment on.")]
Until = Annotated[AwareDatetime | None, Query(description="Before this moment.")]
Cursor = Annotated[str, Query(max_length=200, description="`next_cursor` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="At most this many.")]


@router.get("", responses=responses(400))
async def list_audit_entries(
    deps: Deps,
    *,
    actor: Actor = None,
    target: Target = None,
    action: Action = None,
    since: Since = None,
    until: Until = None,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Page[AuditEntry]:
    """Every change of the last 400 days, the newest first."""
    entries, following = await deps.audit.page(
        actor=actor, target=target, action=action, since=since, until=until, cursor=cursor, limit=limit
    )
    return Page(items=views_of(AuditEntry, entries), next_cursor=following)

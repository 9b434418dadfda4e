"""An admin's decisions about a node: drain, resume, remove, release its name."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from nodesmith.api.auth import Admin, Operator, admin, operator
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName
from nodesmith.api.problems import responses
from nodesmith.contracts.http.nodes import DrainPolicy, LifecycleChanged
from nodesmith.contracts.http.shared import ReasonBody
from nodesmith.domain.errors import InvalidRequest

router = APIRouter(prefix="/api/nodes", tags=["nodes"])

OfRunning = Annotated[
    DrainPolicy, Query(alias="operations", description="Running operations: `finish` or `cancel` them.")
]

Why = Annotated[str, Query(max_length=500, description="Reason for the change, kept in the audit trail.")]


@router.post("/{node}/drain", responses=responses(400, 404))
async def drain(
    node: NodeName, deps: Deps, actor: Operator, body: ReasonBody | None = None, running: OfRunning = DrainPolicy.FINISH
) -> LifecycleChanged:
    """Give the node no new work until it is resumed. What has not begun ends as `cancelled: node drained`."""
    if running is DrainPolicy.UNKNOWN:
        raise InvalidRequest("operations: use finish or cancel.", field="operations")
    return await deps.lifecycle.drain(node, running=running, actor=actor, reason=_reason(body))


@router.post("/{node}/resume", dependencies=[Depends(operator)], responses=responses(400, 404))
async def resume(node: NodeName, deps: Deps, body: ReasonBody | None = None) -> LifecycleChanged:
    """End a drain. This does not approve a pending node."""
    del body  # the audit trail reads it
    return await deps.lifecycle.resume(node)


@router.delete("/{node}", responses=responses(400, 404))
async def remove(node: NodeName, deps: Deps, actor: Admin, reason: Why = "") -> LifecycleChanged:
    """Remove a node: its operations end, its labels and inventory are deleted, history stays, its agent is stopped."""
    return await deps.lifecycle.remove(node, actor=actor, reason=reason)


@router.post("/{node}/reset-credential", dependencies=[Depends(admin)], responses=responses(400, 404))
async def reset_credential(node: NodeName, deps: Deps, body: ReasonBody | None = None) -> LifecycleChanged:
    """Release the name for another machine, which then waits for approval."""
    del body  # the audit trail reads it
    return await deps.lifecycle.reset_credential(node)


def _reason(body: ReasonBody | None) -> str:
    return body.reason if body else ""

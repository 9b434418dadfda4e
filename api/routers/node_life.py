"""The life of a node, as people decide it: drain, resume, remove, give its name free."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from api.auth import Admin, Operator, admin, operator
from api.known import Node
from api.parts import PartsOf
from api.problems import responses
from contracts.http import Because
from contracts.node_http import LifeChanged, Running
from domain.errors import InvalidRequest

router = APIRouter(prefix="/api/nodes", tags=["nodes"])

OfRunning = Annotated[
    Running, Query(alias="operations", description="What runs on the node: `finish` it, or `cancel` it.")
]

Why = Annotated[str, Query(max_length=500, description="Why; kept with the change.")]


@router.post("/{node}/drain", responses=responses(400, 404))
async def drain(
    node: Node, parts: PartsOf, actor: Operator, body: Because | None = None, running: OfRunning = Running.FINISH
) -> LifeChanged:
    """No new work until somebody resumes it. What has not begun ends as `cancelled: node drained`."""
    if running is Running.UNKNOWN:
        raise InvalidRequest("operations: use finish or cancel.", field="operations")
    return await parts.lifecycle.drain(node, running=running, actor=actor, reason=_reason(body))


@router.post("/{node}/resume", dependencies=[Depends(operator)], responses=responses(400, 404))
async def resume(node: Node, parts: PartsOf, body: Because | None = None) -> LifeChanged:
    """Take a drain back. Approves nothing."""
    del body  # the audit trail reads it
    return await parts.lifecycle.resume(node)


@router.delete("/{node}", responses=responses(400, 404))
async def remove(node: Node, parts: PartsOf, actor: Admin, reason: Why = "") -> LifeChanged:
    """Remove a node: its operations end, its labels and its inventory go, history stays, and its agent is told."""
    return await parts.lifecycle.remove(node, actor=actor, reason=reason)


@router.post("/{node}/reset-credential", dependencies=[Depends(admin)], responses=responses(400, 404))
async def reset_credential(node: Node, parts: PartsOf, body: Because | None = None) -> LifeChanged:
    """Give the name free for another machine, which then waits for approval."""
    del body  # the audit trail reads it
    return await parts.lifecycle.reset_credential(node)


def _reason(body: Because | None) -> str:
    return body.reason if body else ""

"""Nodes: list, details, and an operator's decisions about them: approve, drain, resume, remove, release the name."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import TypeAdapter

from nodesmith.api.auth import Admin, Operator, admin, operator, viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.node_lookup import NodeName, known_node
from nodesmith.api.problems import responses
from nodesmith.api.views.nodes import node_view
from nodesmith.api.views.shapes import view_of
from nodesmith.contracts.http.nodes import LifecycleChanged, NodePage, NodeView
from nodesmith.contracts.http.shared import ReasonBody
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.identity import family_of
from nodesmith.domain.node import DrainPolicy, NodeStatus
from nodesmith.domain.selector import parse
from nodesmith.store.nodes.node_list import SORTS, NodeQuery

router = APIRouter(prefix="/api/v1/nodes", tags=["nodes"], dependencies=[Depends(viewer)])

LARGEST_PAGE = 1000

SelectorText = Annotated[
    str,
    Query(
        max_length=2000,
        description="Labels as in Kubernetes: `a=b`, `a!=b`, `a in (x,y)`, `a notin (x,y)`, `a`, `!a`; a comma is AND.",
        examples=["gpu.vram in (24GB,48GB),zone!=b"],
    ),
]
Backend = Annotated[
    str, Query(max_length=255, pattern=r"^[^\x00]*$", description="Only nodes with this backend.", examples=["echo"])
]
Statuses = Annotated[list[NodeStatus] | None, Query(description="Only nodes in this status; may be repeated.")]
Text = Annotated[str, Query(max_length=255, description="Part of the name, the id or the address.")]
Sort = Annotated[
    str, Query(max_length=40, description=f"{', '.join(SORTS)}; `-` prefix: descending.", examples=["-created_at"])
]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="At most this many.")]
Cursor = Annotated[str, Query(max_length=2000, description="`next_cursor` of the previous page.")]
OfRunning = Annotated[
    DrainPolicy, Query(alias="operations", description="Running operations: `finish` or `cancel` them.")
]
Why = Annotated[str, Query(max_length=500, description="Reason for the change, kept in the audit trail.")]

_PAGE = TypeAdapter(NodePage)


@router.get("", response_model=NodePage, responses=responses(400))
async def list_nodes(
    deps: Deps,
    *,
    status: Statuses = None,
    selector: SelectorText = "",
    backend: Backend = "",
    text: Text = "",
    sort: Sort = "name",
    limit: Limit = LARGEST_PAGE,
    cursor: Cursor = "",
) -> Response:
    """The nodes, sorted by name by default; the status is computed at the time of the request."""
    query = NodeQuery(
        statuses=_known(status or []),
        selector=parse(selector),
        family=family_of(backend) if backend else "",
        text=text.replace("\0", ""),
        sort=sort,
        limit=limit,
        cursor=cursor,
    )
    found = await deps.node_list.page(query)
    page = {"items": found.nodes, "total": found.total, "next_cursor": found.next_cursor or None}
    answer = _PAGE.validate_python(page, from_attributes=True)
    return Response(_PAGE.dump_json(answer), media_type="application/json")  # once through pydantic: pages are large


@router.get("/{node}", responses=responses(400, 404))
async def get_node(node: NodeName, deps: Deps) -> NodeView:
    """One node; the status is computed at the time of the request."""
    return node_view(await known_node(deps, node))


@router.delete("/{node}", responses=responses(400, 404))
async def delete_node(node: NodeName, deps: Deps, actor: Admin, reason: Why = "") -> LifecycleChanged:
    """Remove a node: its operations end, its labels and inventory are deleted, history stays, its agent is stopped."""
    return view_of(LifecycleChanged, await deps.lifecycle.remove(node, actor=actor, reason=reason))


@router.post("/{node}/approve", dependencies=[Depends(admin)], responses=responses(400, 404))
async def approve_node(node: NodeName, deps: Deps, body: ReasonBody | None = None) -> NodeView:
    """Admit a node that has registered; it gets its credentials when it registers again."""
    del body  # the audit trail reads it
    await deps.registration.approve(node)
    return node_view(await known_node(deps, node))


@router.post("/{node}/drain", responses=responses(400, 404))
async def drain_node(
    node: NodeName, deps: Deps, actor: Operator, body: ReasonBody | None = None, running: OfRunning = DrainPolicy.FINISH
) -> LifecycleChanged:
    """Give the node no new work until it is resumed. What has not begun ends as `cancelled: node drained`."""
    if running is DrainPolicy.UNKNOWN:
        raise InvalidRequest("operations: use finish or cancel.", field="operations")
    reason = body.reason if body else ""
    return view_of(LifecycleChanged, await deps.lifecycle.drain(node, running=running, actor=actor, reason=reason))


@router.post("/{node}/resume", dependencies=[Depends(operator)], responses=responses(400, 404))
async def resume_node(node: NodeName, deps: Deps, body: ReasonBody | None = None) -> LifecycleChanged:
    """End a drain. This does not approve a pending node."""
    del body  # the audit trail reads it
    return view_of(LifecycleChanged, await deps.lifecycle.resume(node))


@router.post("/{node}/reset-credential", dependencies=[Depends(admin)], responses=responses(400, 404))
async def reset_node_credential(node: NodeName, deps: Deps, body: ReasonBody | None = None) -> LifecycleChanged:
    """Release the name for another machine, which then waits for approval."""
    del body  # the audit trail reads it
    return view_of(LifecycleChanged, await deps.lifecycle.reset_credential(node))


def _known(statuses: list[NodeStatus]) -> tuple[NodeStatus, ...]:
    if NodeStatus.UNKNOWN in statuses:
        known = ", ".join(each for each in NodeStatus if each is not NodeStatus.UNKNOWN)
        raise InvalidRequest(f"status: There is no such status; use one of {known}.", field="status")
    return tuple(statuses)

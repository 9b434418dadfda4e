"""The list of nodes: filtered, sorted, in pages."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from nodesmith.api.auth import viewer
from nodesmith.api.dependencies import Deps
from nodesmith.api.problems import responses
from nodesmith.api.views.nodes import nodes_json
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.identity import family_of
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.selector import parse
from nodesmith.store.nodes.node_list import SORTS, NodePage, NodeQuery

router = APIRouter(prefix="/api/nodes", tags=["nodes"], dependencies=[Depends(viewer)])

TOTAL, NEXT = "X-Total-Count", "X-Next-Cursor"
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
Limit = Annotated[int | None, Query(ge=1, le=LARGEST_PAGE, description="At most this many; default: all.")]
Cursor = Annotated[str, Query(max_length=2000, description=f"`{NEXT}` of the previous page.")]

_HEADERS = {
    TOTAL: {"description": "Number of nodes on all pages.", "schema": {"type": "integer"}},
    NEXT: {"description": "The cursor of the next page; absent on the last.", "schema": {"type": "string"}},
    "Link": {"description": '`rel="next"`: the next page.', "schema": {"type": "string"}},
}


@router.get("", response_model=list[NodeView], responses={200: {"headers": _HEADERS}, **responses(400)})
async def list_nodes(
    request: Request,
    deps: Deps,
    *,
    status: Statuses = None,
    selector: SelectorText = "",
    backend: Backend = "",
    text: Text = "",
    sort: Sort = "name",
    limit: Limit = None,
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
    page = await deps.node_list.page(query)
    return Response(nodes_json(page.nodes), media_type="application/json", headers=_headers(request, page))


def _known(statuses: list[NodeStatus]) -> tuple[NodeStatus, ...]:
    if NodeStatus.UNKNOWN in statuses:
        known = ", ".join(each for each in NodeStatus if each is not NodeStatus.UNKNOWN)
        raise InvalidRequest(f"status: There is no such status; use one of {known}.", field="status")
    return tuple(statuses)


def _headers(request: Request, page: NodePage) -> dict[str, str]:
    headers = {TOTAL: str(page.total)}
    if page.next_cursor:
        following = request.url.include_query_params(cursor=page.next_cursor)
        headers |= {NEXT: page.next_cursor, "Link": f'<{following.path}?{following.query}>; rel="next"'}
    return headers

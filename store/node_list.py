"""The list of nodes: filtered, sorted, and in pages that stay right while nodes come and go."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, exists, func, literal, or_, select, tuple_

from contracts.http import NodeView
from domain.errors import InvalidRequest
from domain.node import NodeStatus, NodeType
from domain.selector import EVERYTHING, Selector
from store.clock import Clock, utc_now
from store.database import Database
from store.labels import selector_condition
from store.models import HeartbeatSinkRow, NodeRow
from store.models_inventory import InstalledRow
from store.nodes import NodeViews, node_views, status_expression
from store.views import node_view

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

SORTS = ("name", "status", "last_heartbeat", "created_at")


@dataclass(frozen=True)
class NodeQuery:
    """Which nodes, in which order, and how many of them."""

    statuses: Sequence[NodeStatus] = ()
    selector: Selector = EVERYTHING
    family: str = ""
    """nodes that have this backend installed"""
    text: str = ""
    """a part of the name, the id or the address"""
    node_type: NodeType | None = None
    sort: str = "name"
    """one of SORTS; `-` in front turns it round"""
    limit: int | None = None
    cursor: str = ""


@dataclass(frozen=True)
class NodePage:
    nodes: list[NodeView]
    total: int
    """of all pages together"""
    next_cursor: str = ""


class NodeList:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def page(self, query: NodeQuery) -> NodePage:
        now = self._clock()
        wanted, total = page_statement(query, now), _count(query, now)
        async with self._database.session() as session:
            found = [node_view(*row) for row in await session.execute(wanted)]
            shown = found if query.limit is None else found[: query.limit]
            is_whole = not query.cursor and len(shown) == len(found)
            counted = len(found) if is_whole else await session.scalar(total) or 0
        more = len(shown) < len(found)
        return NodePage(shown, counted, _cursor_after(query.sort, shown[-1]) if more else "")

    async def matching(self, selector: Selector) -> list[NodeView]:
        """Healthy nodes that take backends: where work can go at this moment."""
        query = NodeQuery(statuses=[NodeStatus.HEALTHY], selector=selector, node_type=NodeType.BACKEND)
        return (await self.page(query)).nodes


def page_statement(query: NodeQuery, now: datetime) -> NodeViews:
    """One more than asked for: that there is a next page is known without counting."""
    key, is_descending = _sort_key(query.sort, now)
    order = (key.desc(), NodeRow.id.desc()) if is_descending else (key, NodeRow.id)
    wanted = node_views(now).where(*_conditions(query, now)).order_by(*order)
    if query.cursor:
        after = tuple_(*_read_cursor(query))
        place = tuple_(key, NodeRow.id)
        wanted = wanted.where(place < after if is_descending else place > after)
    return wanted if query.limit is None else wanted.limit(query.limit + 1)


def _count(query: NodeQuery, now: datetime) -> Select[int]:
    sinks = HeartbeatSinkRow.protocol == NodeRow.protocol
    counted = select(func.count()).select_from(NodeRow).where(*_conditions(query, now))
    return counted.outerjoin(HeartbeatSinkRow, sinks) if query.statuses else counted


def _conditions(query: NodeQuery, now: datetime) -> list[ColumnElement[bool]]:
    conditions = []
    if query.selector.requirements:
        conditions.append(selector_condition(query.selector))
    if query.statuses:
        conditions.append(status_expression(now).in_([str(status) for status in query.statuses]))
    if query.family:
        has = exists().where(InstalledRow.node_id == NodeRow.id, InstalledRow.family == query.family)
        conditions.append(has.correlate(NodeRow))
    if query.text:
        columns = (NodeRow.name, NodeRow.id, NodeRow.address)
        conditions.append(or_(*(column.icontains(query.text, autoescape=True) for column in columns)))
    if query.node_type is not None:
        conditions.append(NodeRow.node_type == str(query.node_type))
    return conditions


def _sort_key(sort: str, now: datetime) -> tuple[ColumnElement[Any], bool]:
    name = sort.removeprefix("-")
    if name not in SORTS:
        raise InvalidRequest(f"sort: use one of {', '.join(SORTS)}, with - in front to turn it round.", field="sort")
    keys: dict[str, Callable[[], ColumnElement[Any]]] = {
        "name": lambda: NodeRow.name.expression,
        "status": lambda: cast(status_expression(now), Text),
        "last_heartbeat": lambda: func.coalesce(NodeRow.last_heartbeat, literal(_LONG_AGO)),
        "created_at": lambda: NodeRow.created_at.expression,
    }
    return keys[name](), sort.startswith("-")


def _cursor_after(sort: str, last: NodeView) -> str:
    value = getattr(last, sort.removeprefix("-"))
    if value is None or isinstance(value, datetime):
        value = (value or _LONG_AGO).isoformat()
    return base64.urlsafe_b64encode(json.dumps([sort, value, last.id]).encode()).decode().rstrip("=")


def _read_cursor(query: NodeQuery) -> tuple[str | datetime, str]:
    """Where the last page ended; a cursor belongs to the order that it was given for."""
    try:
        sort, value, node_id = json.loads(base64.urlsafe_b64decode(query.cursor + "=="))
        is_moment = query.sort.removeprefix("-") in ("last_heartbeat", "created_at")
        place = (datetime.fromisoformat(value) if is_moment else str(value), str(node_id))
    except (binascii.Error, ValueError, TypeError) as error:
        raise _no_cursor() from error
    if sort != query.sort or "\0" in f"{value}{node_id}":
        raise _no_cursor()
    return place


def _no_cursor() -> InvalidRequest:
    return InvalidRequest("cursor: this is no cursor of that list. Begin again without one.", field="cursor")

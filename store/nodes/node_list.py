"""The list of nodes: filtered, sorted, and in pages that stay correct while nodes are added and removed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Select,
    Text,
    bindparam,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
)

from nodesmith.domain.errors import InvalidRequest
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.domain.selector import EVERYTHING, Selector
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.cursors import cursor_after, read_moment, read_text
from nodesmith.store.database import Database
from nodesmith.store.entities import node_of_columns
from nodesmith.store.nodes.held import held_by_replicas
from nodesmith.store.nodes.labels import labels_of_node, selector_condition
from nodesmith.store.nodes.nodes import open_operations_of_node, status_expression
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from nodesmith.store.tables.inventory import InstalledRow

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

_NOW = bindparam("now", type_=DateTime(timezone=True))
_SINKS = HeartbeatSinkRow.protocol == NodeRow.protocol

SORTS = ("name", "status", "last_heartbeat", "created_at")


@dataclass(frozen=True)
class NodeQuery:
    """Filter, order and page of a node list."""

    statuses: tuple[NodeStatus, ...] = ()
    selector: Selector = EVERYTHING
    family: str = ""
    """nodes that have this backend installed"""
    text: str = ""
    """a part of the name, the id or the address"""
    sort: str = "name"
    """one of SORTS; a leading `-` reverses it"""
    limit: int | None = None
    cursor: str = ""


@dataclass(frozen=True)
class NodePage:
    nodes: list[Node]
    total: int
    """of all pages together"""
    next_cursor: str = ""


class NodeList:
    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def page(self, query: NodeQuery) -> NodePage:
        """Read one page with one statement, which is cached per query shape because lists are polled."""
        values = {"now": self._clock(), **_limits(query), **_cursor_values(query)}
        reading = self._database.snapshot if query.cursor else self._database.autocommit
        async with reading() as connection:
            result = await connection.execute(page_statement(_shape(query)), values)
            names, found = tuple(result.keys()), result.all()
            total = found[0].total if found else 0
            if not found and query.cursor:
                total = await connection.scalar(_count(query), values) or 0
        rows = found if query.limit is None else found[: query.limit]
        shown = [node_of_columns(dict(zip(names, row, strict=True))) for row in rows]
        more = len(shown) < len(found)
        return NodePage(shown, total, _cursor_after(query.sort, shown[-1]) if more else "")


def _shape(query: NodeQuery) -> NodeQuery:
    """The query without the values that are bound at execution."""
    return replace(query, limit=None if query.limit is None else 1, cursor="somewhere" if query.cursor else "")


def _limits(query: NodeQuery) -> dict[str, int]:
    """One row more than requested, which shows whether there is a next page."""
    return {} if query.limit is None else {"limit": query.limit + 1}


def _cursor_values(query: NodeQuery) -> dict[str, str | datetime]:
    return dict(zip(("after_key", "after_id"), _read_cursor(query), strict=True)) if query.cursor else {}


@lru_cache(maxsize=256)
def page_statement(shape: NodeQuery) -> Select[Any]:
    """The statement of a page; selects plain columns, because the rows are read only."""
    key, is_descending = _sort_key(shape.sort)
    order = (key.desc(), NodeRow.id.desc()) if is_descending else (key, NodeRow.id)
    columns = [
        *NodeRow.__table__.c,
        status_expression(_NOW).label("status"),
        open_operations_of_node().label("open_operations"),
        labels_of_node().label("labels"),
        held_by_replicas().label("held"),
        _count(shape).correlate(None).scalar_subquery().label("total"),
    ]
    wanted = select(*columns).select_from(NodeRow).outerjoin(HeartbeatSinkRow, _SINKS)
    wanted = wanted.where(*_conditions(shape)).order_by(*order)
    if shape.cursor:
        after = tuple_(bindparam("after_key", type_=key.type), bindparam("after_id", type_=Text()))
        place = tuple_(key, NodeRow.id)
        wanted = wanted.where(place < after if is_descending else place > after)
    return wanted if shape.limit is None else wanted.limit(bindparam("limit", type_=BigInteger()))


def _count(query: NodeQuery) -> Select[int]:
    counted = select(func.count()).select_from(NodeRow).where(*_conditions(query))
    return counted.outerjoin(HeartbeatSinkRow, _SINKS) if query.statuses else counted


def _conditions(query: NodeQuery) -> list[ColumnElement[bool]]:
    conditions = []
    if query.selector.requirements:
        conditions.append(selector_condition(query.selector))
    if query.statuses:
        conditions.append(status_expression(_NOW).in_([str(status) for status in query.statuses]))
    if query.family:
        has = exists().where(InstalledRow.node_id == NodeRow.id, InstalledRow.family == query.family)
        conditions.append(has.correlate(NodeRow))
    if query.text:
        columns = (NodeRow.name, NodeRow.id, NodeRow.address)
        conditions.append(or_(*(column.icontains(query.text, autoescape=True) for column in columns)))
    return conditions


def _sort_key(sort: str) -> tuple[ColumnElement[Any], bool]:
    name = sort.removeprefix("-")
    if name not in SORTS:
        raise InvalidRequest(f"sort: use one of {', '.join(SORTS)}, with a leading - to reverse it.", field="sort")
    keys: dict[str, Callable[[], ColumnElement[Any]]] = {
        "name": lambda: NodeRow.name.expression,
        "status": lambda: cast(status_expression(_NOW), Text),
        "last_heartbeat": lambda: func.coalesce(NodeRow.last_heartbeat, literal(_LONG_AGO)),
        "created_at": lambda: NodeRow.created_at.expression,
    }
    return keys[name](), sort.startswith("-")


def _cursor_after(sort: str, last: Node) -> str:
    value = getattr(last, sort.removeprefix("-"))
    return cursor_after(_order(sort), _LONG_AGO if value is None else value, last.id)


def _read_cursor(query: NodeQuery) -> tuple[str | datetime, str]:
    """Where the last page ended; a cursor is valid only for the sort order it was created for."""
    is_moment = query.sort.removeprefix("-") in ("last_heartbeat", "created_at")
    return (read_moment if is_moment else read_text)(query.cursor, _order(query.sort))


def _order(sort: str) -> str:
    return f"nodes by {sort}"

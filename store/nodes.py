"""The registry of nodes: facts in, views with a derived status out."""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Select,
    String,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.sql.selectable import ScalarSelect

from contracts.messages import Heartbeat, Resources
from contracts.node_http import NodeView, RegisterRequest
from domain.errors import NameTaken
from domain.node import SILENT_AFTER, HeardNode, NodeStatus, Protocol
from domain.operation import OPEN
from store.clock import Clock, utc_now
from store.database import Database
from store.labels import labels_of_node, write_reported
from store.models import HeartbeatSinkRow, NodeRow, OperationRow, one_of
from store.text import storable
from store.views import node_view

NodeViews = Select[NodeRow, str, int, dict[str, str] | None]

SINK_AWAY_AFTER = timedelta(seconds=15)

_HEARTBEATS = text("""
    UPDATE nodes
    SET last_heartbeat = CASE
            WHEN heard.is_it THEN greatest(nodes.last_heartbeat, :now) ELSE nodes.last_heartbeat END,
        boot_id = CASE WHEN heard.is_it AND nodes.approved_at IS NOT NULL
            THEN coalesce(nullif(heard.boot_id, ''), nodes.boot_id) ELSE nodes.boot_id END,
        resources = CASE WHEN heard.is_it AND nodes.approved_at IS NOT NULL AND nodes.left_at IS NULL
            THEN nodes.resources || heard.resources ELSE nodes.resources END,
        unreachable_since = CASE WHEN :proves_link AND heard.is_it THEN NULL ELSE nodes.unreachable_since END
    FROM (
        SELECT known.id, beat.boot_id, beat.resources,
            (beat.boot_id = '' OR known.boot_id IN ('', beat.boot_id)) AS is_it
        FROM jsonb_to_recordset(CAST(:beats AS jsonb)) AS beat (node_id text, boot_id text, resources jsonb)
        JOIN nodes AS known ON known.id = beat.node_id
        ORDER BY known.id
        FOR NO KEY UPDATE OF known
    ) AS heard
    WHERE nodes.id = heard.id
    RETURNING nodes.id, nodes.boot_id, nodes.approved_at IS NOT NULL
""")
"""Rows are locked in the order of their ids, so that two batches at once cannot lock each other out.
A process of another boot than the one that registered is no sign of life of the node.
The facts of a node that is pending, or that left, stay as it registered them."""


def status_expression(now: datetime | ColumnElement[datetime]) -> ColumnElement[str]:
    """The SQL twin of `domain.node.status_of`; needs `heartbeat_sinks` joined on the node's protocol."""
    node, sink = NodeRow, HeartbeatSinkRow
    heard = func.greatest(node.last_heartbeat, sink.listening_since)
    until = func.least(literal(now) if isinstance(now, datetime) else now, sink.last_listened)
    return case(
        (node.approved_at.is_(None), literal(NodeStatus.PENDING.value)),
        (
            node.drained_at.is_not(None) | (node.leaving_at.is_not(None) & node.left_at.is_(None)),
            literal(NodeStatus.DRAINING.value),
        ),
        (node.left_at.is_not(None) | node.last_heartbeat.is_(None), literal(NodeStatus.OFFLINE.value)),
        (until - heard > SILENT_AFTER, literal(NodeStatus.OFFLINE.value)),
        (node.unreachable_since.is_not(None), literal(NodeStatus.UNHEALTHY.value)),
        else_=literal(NodeStatus.HEALTHY.value),
    )


_ANSWERED = text("""
    WITH answered AS (
        SELECT * FROM unnest(CAST(:node_ids AS text[]), CAST(:times AS timestamptz[])) AS answered (node_id, at)),
    marked AS (
        SELECT id FROM nodes JOIN answered ON nodes.id = answered.node_id
        WHERE nodes.unreachable_since <= answered.at ORDER BY id FOR NO KEY UPDATE OF nodes)
    UPDATE nodes SET unreachable_since = NULL FROM marked WHERE nodes.id = marked.id
""")


class Nodes:
    """The table of nodes."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def find(self, id_or_name: str) -> NodeView | None:
        """By id, else by name: an id that is another node's name stays an id."""
        async with self._database.reading() as session:
            found = (await session.execute(_FIND, {"asked": id_or_name, "now": self._clock()})).first()
        return node_view(*found) if found else None

    async def among(self, node_ids: Sequence[str]) -> dict[str, NodeView]:
        """Those of these that there are, by id."""
        among = node_views(self._clock()).where(NodeRow.id.in_(node_ids))
        return {node.id: node for node in await self._fetch(among)}

    async def list(self) -> Sequence[NodeView]:
        return await self._fetch(node_views(self._clock()).order_by(NodeRow.name))

    async def credential_hash(self, node_id: str) -> str | None:
        async with self._database.session() as session:
            return await session.scalar(select(NodeRow.credential_hash).where(NodeRow.id == node_id))

    async def with_credential(self, credential_hash: str) -> NodeView | None:
        """Whose credential that is."""
        found = await self._fetch(node_views(self._clock()).where(NodeRow.credential_hash == credential_hash).limit(1))
        return found[0] if found else None

    async def machine_id(self, node_id: str) -> str:
        async with self._database.session() as session:
            return await session.scalar(select(NodeRow.machine_id).where(NodeRow.id == node_id)) or ""

    async def upsert(
        self,
        request: RegisterRequest,
        *,
        now: datetime,
        credential_hash: str | None,
        approve: bool,
        instead_of: str | None = None,
    ) -> NodeView:
        """Register by name: the id and what an admin decided stay; what the node reports is taken over.

        `instead_of` is the boot that was the node when somebody looked: if it is another by now, nothing is written.
        """
        registered = _registration(request, now, credential_hash, approve=approve, instead_of=instead_of)
        async with self._database.session() as session:
            node_id = await session.scalar(registered)
            if node_id is None:
                raise NameTaken
            await write_reported(session, await session.get_one(NodeRow, node_id), request.labels)
            return node_view(*(await session.execute(node_views(now).where(NodeRow.id == node_id))).one())

    async def approve(self, node_id: str, *, now: datetime) -> bool:
        """False when there is nothing to approve."""
        pending = update(NodeRow).where(NodeRow.id == node_id, NodeRow.approved_at.is_(None))
        async with self._database.session() as session:
            return bool(await session.scalar(pending.values(approved_at=now, updated_at=now).returning(NodeRow.id)))

    async def heartbeats(
        self, beats: Sequence[Heartbeat], now: datetime, *, over_nats: bool = True
    ) -> Sequence[HeardNode]:
        """Many heartbeats in one UPDATE; only one that came over NATS proves that commands get through.

        Returns the nodes that are known: who is missing was removed, who has another boot is somebody else.
        """
        latest = {beat.node_id: beat for beat in beats}
        rows = [
            {"node_id": node_id, "boot_id": beat.boot_id, "resources": _reported(beat.resources)}
            for node_id, beat in latest.items()
        ]
        async with self._database.session() as session:
            heard = await session.execute(
                _HEARTBEATS, {"now": now, "beats": json.dumps(storable(rows)), "proves_link": over_nats}
            )
            return [HeardNode(node_id, boot_id, is_approved) for node_id, boot_id, is_approved in heard]

    async def touch_listening(self, now: datetime, *, protocol: Protocol = Protocol.NODESMITH) -> None:
        """The heartbeat sink of that protocol listens; if it was away, nodes get their time anew."""
        sink = HeartbeatSinkRow
        first = insert(sink).values(protocol=protocol, listening_since=now, last_listened=now)
        was_away = first.excluded.last_listened - sink.last_listened > SINK_AWAY_AFTER
        changes = {
            "listening_since": case((was_away, first.excluded.listening_since), else_=sink.listening_since),
            "last_listened": func.greatest(sink.last_listened, first.excluded.last_listened),
        }
        async with self._database.session() as session:
            await session.execute(first.on_conflict_do_update(index_elements=[sink.protocol], set_=changes))

    async def mark_unreachable(self, node_id: str, now: datetime) -> None:
        """Nobody answered at the node; keeps the first time."""
        reachable = update(NodeRow).where(NodeRow.id == node_id, NodeRow.unreachable_since.is_(None))
        async with self._database.session() as session:
            await session.execute(reachable.values(unreachable_since=now))

    async def mark_reachable(self, answered: Mapping[str, datetime]) -> None:
        """These nodes answered a request over NATS, each at its time; what was marked later stays."""
        values = {"node_ids": list(answered), "times": list(answered.values())}
        async with self._database.autocommit() as connection:
            await connection.execute(_ANSWERED, values)

    async def _fetch(self, statement: NodeViews) -> Sequence[NodeView]:
        async with self._database.reading() as session:
            return [node_view(*found) for found in await session.execute(statement)]


def node_views(now: datetime | ColumnElement[datetime]) -> NodeViews:
    """What `store.views.node_view` is made of; narrow it down, order it."""
    return select(NodeRow, status_expression(now), open_operations_of_node(), labels_of_node()).outerjoin(
        HeartbeatSinkRow, HeartbeatSinkRow.protocol == NodeRow.protocol
    )


def open_operations_of_node() -> ScalarSelect[int]:
    found = select(func.count()).select_from(OperationRow)
    return found.where(OperationRow.node_id == NodeRow.id, text(one_of("operations.state", OPEN))).scalar_subquery()


_ASKED = bindparam("asked", type_=String)
_FIND = (
    node_views(bindparam("now", type_=DateTime(timezone=True)))
    .where(or_(NodeRow.id == _ASKED, NodeRow.name == _ASKED))
    .order_by((NodeRow.id == _ASKED).desc())
    .limit(1)
)
"""made once: every request about a node begins with it"""


def _registration(
    request: RegisterRequest, now: datetime, credential_hash: str | None, *, approve: bool, instead_of: str | None
) -> ReturningInsert[str]:
    """Insert or renew. Machine and boot are compared inside the statement: of two that race for a name, one loses.

    A LocalAI worker shows no machine, so its name stays with that kind of node until it is given free.
    """
    reported = _reported_facts(request)
    first = insert(NodeRow).values(
        id=str(uuid.uuid4()),
        name=request.name,
        credential_hash=credential_hash,
        approved_at=now if approve else None,
        last_heartbeat=now if request.protocol is Protocol.LOCALAI else None,
        boot_at=now,
        created_at=now,
        updated_at=now,
        **storable(reported),
    )
    renewed = {
        **{column: first.excluded[column] for column in reported},
        "credential_hash": func.coalesce(first.excluded.credential_hash, NodeRow.credential_hash),
        "approved_at": func.coalesce(NodeRow.approved_at, first.excluded.approved_at),
        "last_heartbeat": func.greatest(NodeRow.last_heartbeat, first.excluded.last_heartbeat),
        "boot_at": case((NodeRow.boot_id == request.boot_id, NodeRow.boot_at), else_=now),
        "leaving_at": None,
        "left_at": None,
        "updated_at": now,
    }
    same_machine = NodeRow.machine_id.in_(["", request.machine_id])
    is_free = NodeRow.credential_hash.is_(None)
    same_kind = NodeRow.protocol == int(request.protocol)
    may_be = is_free | (same_machine & same_kind)
    if instead_of is not None and request.boot_id:
        may_be &= NodeRow.boot_id.in_([instead_of, request.boot_id])
    return first.on_conflict_do_update(index_elements=[NodeRow.name], set_=renewed, where=may_be).returning(NodeRow.id)


def _reported_facts(request: RegisterRequest) -> dict[str, object]:
    return {
        "node_type": request.node_type or "backend",
        "protocol": int(request.protocol),
        "address": request.address,
        "http_address": request.http_address,
        "max_replicas_per_model": max(request.max_replicas_per_model, 1),
        "vram_budget": request.vram_budget,
        "machine_id": request.machine_id,
        "boot_id": request.boot_id,
        "agent_version": request.agent_version,
        "resources": _reported(request),
    }


def _reported(resources: Resources) -> dict[str, object]:
    """Only what the node said: what it left out keeps its last value."""
    return resources.model_dump(include=set(Resources.model_fields), exclude_none=True)

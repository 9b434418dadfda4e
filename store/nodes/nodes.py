"""The registry of nodes: stores facts, returns nodes with a derived status."""

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
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.sql.selectable import ScalarSelect

from nodesmith.contracts.http.nodes import RegisterRequest
from nodesmith.contracts.nats.presence import Heartbeat, Resources
from nodesmith.domain.eligibility import Obstacle
from nodesmith.domain.errors import NameTaken
from nodesmith.domain.node import SILENT_AFTER, Node, NodeKey, NodeStatus, Protocol, ReportingNode
from nodesmith.domain.operation import OPEN
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.entities import node_of
from nodesmith.store.nodes.eligibility import hindered_by
from nodesmith.store.nodes.held import held_by_replicas
from nodesmith.store.nodes.labels import labels_of_node, write_reported
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow, OperationRow, one_of
from nodesmith.store.text import storable

NodeSelect = Select[NodeRow, str, int, dict[str, str] | None, list[int]]

SINK_AWAY_AFTER = timedelta(seconds=15)

CLOCK_SET_BACK = timedelta(minutes=5)
"""a stored time so far ahead comes from a clock that was set back since, and is replaced; replicas differ by less"""

_HEARTBEATS = text("""
    UPDATE nodes
    SET last_heartbeat = CASE
            WHEN NOT heard.is_it THEN nodes.last_heartbeat
            WHEN nodes.last_heartbeat > :future THEN :now
            ELSE greatest(nodes.last_heartbeat, :now) END,
        boot_id = CASE WHEN heard.is_it AND nodes.approved_at IS NOT NULL
            THEN coalesce(nullif(heard.boot_id, ''), nodes.boot_id) ELSE nodes.boot_id END,
        resources = CASE WHEN heard.is_it AND nodes.approved_at IS NOT NULL AND nodes.left_at IS NULL
            THEN nodes.resources || heard.resources ELSE nodes.resources END,
        resources_at = CASE WHEN heard.is_it AND nodes.approved_at IS NOT NULL AND nodes.left_at IS NULL
            AND heard.resources <> '{}' THEN now() ELSE nodes.resources_at END,
        unreachable_since = CASE WHEN :proves_link AND heard.is_it THEN NULL ELSE nodes.unreachable_since END,
        beat_seq = CASE WHEN heard.is_it THEN heard.seq ELSE nodes.beat_seq END,
        beat_at = CASE WHEN heard.is_it THEN greatest(nodes.beat_at, heard.at) ELSE nodes.beat_at END,
        trust_version = CASE WHEN heard.is_it AND nodes.approved_at IS NOT NULL AND nodes.left_at IS NULL
            THEN heard.trust_version ELSE nodes.trust_version END
    FROM (
        SELECT known.id, beat.boot_id, beat.resources, beat.seq, beat.at, beat.trust_version,
            (beat.boot_id = '' OR known.boot_id IN ('', beat.boot_id))
                AND (beat.seq = 0 OR beat.seq > known.beat_seq) AS is_it
        FROM jsonb_to_recordset(CAST(:beats AS jsonb))
            AS beat (
                node_id text, boot_id text, seq bigint, at timestamptz, resources jsonb, trust_version bigint)
        JOIN nodes AS known ON known.id = beat.node_id
        ORDER BY known.id
        FOR NO KEY UPDATE OF known
    ) AS heard
    WHERE nodes.id = heard.id
    RETURNING nodes.id, nodes.boot_id, nodes.approved_at IS NOT NULL, nodes.beat_at
""")
"""Rows are locked in the order of their ids, so that concurrent batches cannot deadlock.
A heartbeat of another boot than the registered one, or a repeated heartbeat, does not refresh the node.
The facts of a node that is pending, or that left, stay as it registered them."""


def status_expression(now: datetime | ColumnElement[datetime]) -> ColumnElement[str]:
    """`nodesmith.domain.node.status_of` in SQL; needs `heartbeat_sinks` joined on the node's protocol."""
    node = NodeRow
    return case(
        (node.approved_at.is_(None), literal(NodeStatus.PENDING.value)),
        (
            node.drained_at.is_not(None) | (node.leaving_at.is_not(None) & node.left_at.is_(None)),
            literal(NodeStatus.DRAINING.value),
        ),
        (node.left_at.is_not(None) | node.last_heartbeat.is_(None), literal(NodeStatus.OFFLINE.value)),
        (silence_expression(now), literal(NodeStatus.OFFLINE.value)),
        (node.unreachable_since.is_not(None), literal(NodeStatus.UNHEALTHY.value)),
        else_=literal(NodeStatus.HEALTHY.value),
    )


def silence_expression(now: datetime | ColumnElement[datetime]) -> ColumnElement[bool]:
    """Whether the node has been silent for too long while the control plane listened."""
    heard = func.greatest(NodeRow.last_heartbeat, HeartbeatSinkRow.listening_since)
    until = func.least(literal(now) if isinstance(now, datetime) else now, HeartbeatSinkRow.last_listened)
    return until - heard > SILENT_AFTER


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

    async def find(self, id_or_name: str) -> Node | None:
        """Find by id, else by name; an id wins over an equal name of another node."""
        async with self._database.reading() as session:
            found = (await session.execute(_FIND, {"asked": id_or_name, "now": self._clock()})).first()
        return node_of(*found) if found else None

    async def find_many(self, node_ids: Sequence[str]) -> dict[str, Node]:
        """The existing ones of these nodes, by id."""
        among = select_nodes(self._clock()).where(NodeRow.id.in_(node_ids))
        return {node.id: node for node in await self._fetch(among)}

    async def list(self) -> Sequence[Node]:
        return await self._fetch(select_nodes(self._clock()).order_by(NodeRow.name))

    async def credential_hash(self, node_id: str) -> str | None:
        async with self._database.session() as session:
            return await session.scalar(select(NodeRow.credential_hash).where(NodeRow.id == node_id))

    async def with_credential(self, credential_hash: str) -> Node | None:
        """The node with this credential."""
        found = await self._fetch(
            select_nodes(self._clock()).where(NodeRow.credential_hash == credential_hash).limit(1)
        )
        return found[0] if found else None

    async def keys_of(self, node_ids: Sequence[str]) -> dict[str, NodeKey]:
        """The signing keys of these nodes; a missing node is not registered."""
        wanted = select(NodeRow.id, NodeRow.protocol, NodeRow.nats_key).where(NodeRow.id.in_(node_ids))
        async with self._database.reading() as session:
            found = await session.execute(wanted)
            return {node_id: NodeKey(Protocol(protocol), key) for node_id, protocol, key in found}

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
    ) -> Node:
        """Register by name: the id and the admin's decisions stay, the reported facts are replaced.

        `instead_of` is the boot that the caller saw: if it has changed since, nothing is written.
        """
        registered = _registration(request, now, credential_hash, approve=approve, instead_of=instead_of)
        async with self._database.session() as session:
            node_id = await session.scalar(registered)
            if node_id is None:
                raise NameTaken
            await write_reported(session, await session.get_one(NodeRow, node_id), request.labels)
            return node_of(*(await session.execute(select_nodes(now).where(NodeRow.id == node_id))).one())

    async def pending(self) -> int:
        """How many nodes wait for approval."""
        waiting = select(func.count()).select_from(NodeRow).where(hindered_by(Obstacle.NOT_APPROVED))
        async with self._database.reading() as session:
            return await session.scalar(waiting) or 0

    async def approve(self, node_id: str, *, now: datetime) -> bool:
        """Approve a pending node; False when it is not pending."""
        pending = update(NodeRow).where(NodeRow.id == node_id, NodeRow.approved_at.is_(None))
        async with self._database.session() as session:
            return bool(await session.scalar(pending.values(approved_at=now, updated_at=now).returning(NodeRow.id)))

    async def heartbeats(
        self, beats: Sequence[Heartbeat], now: datetime, *, over_nats: bool = True
    ) -> Sequence[ReportingNode]:
        """Store many heartbeats in one UPDATE; only those over NATS prove that commands reach the node.

        Returns the known nodes: a missing one was removed; if the boot differs, another process sent the heartbeat.
        """
        latest = {beat.node_id: beat for beat in beats}
        rows = [
            {
                "node_id": node_id,
                "boot_id": beat.boot_id,
                "seq": beat.seq,
                "at": beat.at.isoformat() if beat.at else None,
                "resources": _reported(beat.resources),
                "trust_version": beat.trust_version,
            }
            for node_id, beat in latest.items()
        ]
        async with self._database.session() as session:
            heard = await session.execute(
                _HEARTBEATS,
                {
                    "now": now,
                    "future": now + CLOCK_SET_BACK,
                    "beats": json.dumps(storable(rows)),
                    "proves_link": over_nats,
                },
            )
            return [ReportingNode(*node) for node in heard]

    async def touch_listening(self, now: datetime, *, protocol: Protocol = Protocol.NODESMITH) -> None:
        """Record that the heartbeat sink of that protocol listens; after a gap the silence of all nodes counts anew."""
        sink = HeartbeatSinkRow
        first = insert(sink).values(protocol=protocol, listening_since=now, last_listened=now)
        was_away = first.excluded.last_listened - sink.last_listened > SINK_AWAY_AFTER
        was_ahead = sink.last_listened - first.excluded.last_listened > CLOCK_SET_BACK
        newer = func.greatest(sink.last_listened, first.excluded.last_listened)
        changes = {
            "listening_since": case((was_away | was_ahead, first.excluded.listening_since), else_=sink.listening_since),
            "last_listened": case((was_ahead, first.excluded.last_listened), else_=newer),
        }
        async with self._database.session() as session:
            await session.execute(first.on_conflict_do_update(index_elements=[sink.protocol], set_=changes))

    async def mark_unreachable(self, node_id: str, now: datetime) -> None:
        """Mark a node that has no subscriber; keeps the first time."""
        reachable = update(NodeRow).where(NodeRow.id == node_id, NodeRow.unreachable_since.is_(None))
        async with self._database.session() as session:
            await session.execute(reachable.values(unreachable_since=now))

    async def mark_reachable(self, answered: Mapping[str, datetime]) -> None:
        """Clear the mark of nodes that answered a request over NATS; marks later than the answer stay."""
        values = {"node_ids": list(answered), "times": list(answered.values())}
        async with self._database.autocommit() as connection:
            await connection.execute(_ANSWERED, values)

    async def _fetch(self, statement: NodeSelect) -> Sequence[Node]:
        async with self._database.reading() as session:
            return [node_of(*found) for found in await session.execute(statement)]


def select_nodes(now: datetime | ColumnElement[datetime]) -> NodeSelect:
    """The base query of `nodesmith.store.entities.node_of`; callers add filters and order."""
    derived = (status_expression(now), open_operations_of_node(), labels_of_node(), held_by_replicas())
    return select(NodeRow, *derived).outerjoin(HeartbeatSinkRow, HeartbeatSinkRow.protocol == NodeRow.protocol)


async def node_by_id(session: AsyncSession, node_id: str, now: datetime) -> Node | None:
    """The node as this transaction sees it."""
    found = (await session.execute(select_nodes(now).where(NodeRow.id == node_id))).first()
    return node_of(*found) if found else None


def open_operations_of_node() -> ScalarSelect[int]:
    found = select(func.count()).select_from(OperationRow)
    return found.where(OperationRow.node_id == NodeRow.id, text(one_of("operations.state", OPEN))).scalar_subquery()


_ASKED = bindparam("asked", type_=String)
_FIND = (
    select_nodes(bindparam("now", type_=DateTime(timezone=True)))
    .where(or_(NodeRow.id == _ASKED, NodeRow.name == _ASKED))
    .order_by((NodeRow.id == _ASKED).desc())
    .limit(1)
)
"""built once: every request about a node runs it"""


def _registration(
    request: RegisterRequest, now: datetime, credential_hash: str | None, *, approve: bool, instead_of: str | None
) -> ReturningInsert[str]:
    """Insert or renew. The statement compares machine and boot, so of two concurrent registrations one fails.

    A LocalAI worker reports no machine id, so its name stays with that protocol until it is released.
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
        "beat_seq": case((NodeRow.boot_id == request.boot_id, NodeRow.beat_seq), else_=0),
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
        "nats_key": request.nats_key if request.protocol is Protocol.NODESMITH else "",
        "resources": _reported(request),
        "resources_at": func.now(),
    }


def _reported(resources: Resources) -> dict[str, object]:
    """Only the reported values: omitted ones keep their last value."""
    return resources.model_dump(include=set(Resources.model_fields), exclude_none=True)

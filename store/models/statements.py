"""SQL about nodes and replicas that several statements share."""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import ColumnElement, Numeric, Select, and_, case, func, literal, select, text

from nodesmith.domain.eligibility import Obstacle
from nodesmith.domain.node import NodeStatus, Protocol
from nodesmith.domain.replica import STARTING, Replica, ReplicaState
from nodesmith.domain.selector import Selector
from nodesmith.domain.tick import LOST_AFTER
from nodesmith.store.database import PLACEMENT_LOCK
from nodesmith.store.nodes.eligibility import hindered_by
from nodesmith.store.nodes.labels import selector_condition
from nodesmith.store.nodes.nodes import silence_expression, status_expression
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from nodesmith.store.tables.models import ReplicaRow

LOCK = text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=PLACEMENT_LOCK)
"""The first statement of every transaction that places, evicts, scales, deploys or drains.
A test inside the writing statement alone does not suffice: its sums come from an older snapshot."""

SINK = HeartbeatSinkRow.protocol == NodeRow.protocol
SETTLED = tuple(state.value for state in STARTING | {ReplicaState.LOADED})
LOADED = ReplicaState.LOADED.value

Now = datetime | ColumnElement[datetime]


def is_healthy(now: Now) -> ColumnElement[bool]:
    """Whether the node may get a replica; needs `heartbeat_sinks` joined on the node's protocol."""
    is_worker = NodeRow.protocol == int(Protocol.LOCALAI)
    return and_(status_expression(now) == NodeStatus.HEALTHY.value, ~hindered_by(Obstacle.NOT_FOR_BACKENDS), ~is_worker)


def is_serving(now: Now) -> ColumnElement[bool]:
    """Whether calls reach the node: it is healthy, or would be if nobody drained it."""
    return and_(
        NodeRow.approved_at.is_not(None),
        NodeRow.left_at.is_(None),
        NodeRow.last_heartbeat.is_not(None),
        ~func.coalesce(silence_expression(now), literal(value=False)),
        NodeRow.unreachable_since.is_(None),
    )


def counts(now: Now) -> ColumnElement[bool]:
    """`nodesmith.domain.tick.counts` in SQL."""
    moment = literal(now) if isinstance(now, datetime) else now
    doubtful = and_(
        status_expression(now) == NodeStatus.UNHEALTHY.value, moment - NodeRow.unreachable_since < LOST_AFTER
    )
    return is_serving(now) | func.coalesce(doubtful, literal(value=False))


def settled(model: str, revision: int, selector: Selector, now: Now) -> Select[int]:
    """The number of settled replicas of a model: current, in the right place, loaded or on their way."""
    is_drained = status_expression(now) == NodeStatus.DRAINING.value
    return (
        select(func.count())
        .select_from(ReplicaRow)
        .join(NodeRow, NodeRow.id == ReplicaRow.node_id)
        .outerjoin(HeartbeatSinkRow, SINK)
        .where(
            ReplicaRow.model_name == model,
            ReplicaRow.revision == revision,
            ReplicaRow.state.in_(SETTLED),
            counts(now),
            ~is_drained,
            selector_condition(selector),
        )
    )


def loaded_and_serving(model: ColumnElement[str] | str, now: Now) -> Select[int]:
    """The number of loaded replicas of a model that get calls."""
    return _loaded_on(model).where(is_serving(now))


def loaded_and_healthy(model: ColumnElement[str] | str, now: Now) -> Select[int]:
    """The number of loaded replicas of a model on healthy nodes."""
    return _loaded_on(model).where(status_expression(now) == NodeStatus.HEALTHY.value)


def _loaded_on(model: ColumnElement[str] | str) -> Select[int]:
    found = ReplicaRow.__table__.alias("other")
    counted = select(func.count()).select_from(found).join(NodeRow, NodeRow.id == found.c.node_id)
    return counted.outerjoin(HeartbeatSinkRow, SINK).where(found.c.model_name == model, found.c.state == LOADED)


def memory_free() -> ColumnElement[Decimal]:
    """The free memory of the last reading, for the order of replicas that are equally busy."""
    sizes = {
        key: NodeRow.resources[key].astext.cast(Numeric) for key in ("total_vram", "available_vram", "available_ram")
    }
    has_gpu = func.coalesce(sizes["total_vram"], 0) > 0
    return case((has_gpu, sizes["available_vram"]), else_=sizes["available_ram"])


def replica_of(row: ReplicaRow, *, is_reachable: bool = True) -> Replica:
    return Replica(
        id=row.id,
        node_id=row.node_id,
        model=row.model_name,
        index=row.replica_index,
        revision=row.revision,
        state=ReplicaState(row.state),
        address=row.address,
        op_id=row.op_id,
        reserved=row.reserved,
        loaded_at=row.loaded_at,
        in_flight=row.in_flight,
        last_used=row.last_used,
        node_seq=row.node_seq,
        boot_id=row.boot_id,
        created_at=row.created_at,
        changed_at=row.changed_at,
        is_reachable=is_reachable,
    )

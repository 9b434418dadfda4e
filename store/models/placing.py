"""Placement and eviction in SQL. Each is one transaction: first the lock, then a test and a write in one statement."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    and_,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate
from sqlalchemy.sql.selectable import LateralFromClause

from nodesmith.domain.deployment import Deployment
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.placement import SEEN_AFTER, NodeMemory, memory_of
from nodesmith.domain.replica import Replica, ReplicaState
from nodesmith.domain.selector import Selector
from nodesmith.domain.selector import parse as parse_selector
from nodesmith.domain.tick import PlannedPlacement
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.models.statements import (
    LOADED,
    LOCK,
    SINK,
    Now,
    is_healthy,
    loaded_and_healthy,
    replica_of,
    settled,
)
from nodesmith.store.nodes.labels import selector_condition
from nodesmith.store.nodes.nodes import node_by_id
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from nodesmith.store.tables.models import ModelRow, ModelRuleRow, ReplicaRow


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReplica:
    """One replica for one node, and what must hold for it."""

    node_id: str
    model: str
    revision: int
    selector: Selector
    need: int
    upto: int | None = None
    """at most this many settled replicas of the model afterwards; None: no limit"""
    is_per_node: bool = False


class ReplicaPlacing:
    """Places and evicts replicas."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def place(self, deployment: Deployment, planned: PlannedPlacement) -> Replica | None:
        """Place a replica as planned; None if it is no longer wanted or does not fit any more."""
        wanted = NewReplica(
            node_id=planned.choice.node_id,
            model=deployment.name,
            revision=deployment.revision,
            selector=parse_selector(deployment.selector),
            need=deployment.spec.memory,
            upto=planned.upto,
            is_per_node=planned.is_per_node,
        )
        async with self._database.session() as session:
            await session.execute(LOCK)
            return await self._place(session, wanted)

    async def evict(self, node_ids: Sequence[str], *, for_model: str) -> Replica | None:
        """Drain the least recently used idle replica on these nodes that its model can spare; None if there is none."""
        async with self._database.session() as session:
            await session.execute(LOCK)
            row = await session.scalar(evict_statement(node_ids, for_model, self._clock()))
            return replica_of(row) if row else None

    async def _place(self, session: AsyncSession, wanted: NewReplica) -> Replica | None:
        now = self._clock()
        node = await node_by_id(session, wanted.node_id, now)
        if node is None:
            return None
        row = await session.scalar(place_statement(wanted, memory_of(node), node.resources_at, now))
        return replica_of(row) if row else None


def place_statement(
    wanted: NewReplica, memory: NodeMemory, resources_at: datetime | None, now: Now
) -> ReturningInsert[ReplicaRow]:
    """`nodesmith.domain.placement` for one node in SQL, except the disk; inserts nothing if it does not fit."""
    index, used = _lowest_free_index(wanted.model), _memory_used(resources_at)
    found = (
        select(
            literal(new_op_id()),
            NodeRow.id,
            literal(wanted.model),
            index.c.number,
            literal(wanted.revision, BigInteger),
            literal(ReplicaState.PLACING.value),
            literal(new_op_id()),
            literal(wanted.need, BigInteger),
        )
        .select_from(NodeRow)
        .outerjoin(HeartbeatSinkRow, SINK)
        .join(index, true())
        .join(used, true())
        .where(NodeRow.id == wanted.node_id, is_healthy(now), selector_condition(wanted.selector))
        .where(_is_deployed(wanted), _is_wanted(wanted, now), _fits(wanted.need, memory, used))
    )
    columns = ["id", "node_id", "model_name", "replica_index", "revision", "state", "op_id", "reserved"]
    return insert(ReplicaRow).from_select(columns, found).returning(ReplicaRow)


def evict_statement(node_ids: Sequence[str], for_model: str, now: Now) -> ReturningUpdate[ReplicaRow]:
    """Drain one replica: the oldest idle one whose model stays above its minimum, counted on healthy nodes."""
    victim = ReplicaRow.__table__.alias("victim")
    rule = select(ModelRuleRow).where(ModelRuleRow.model_name == victim.c.model_name).lateral("rule")
    healthy = loaded_and_healthy(victim.c.model_name, now).correlate(victim).scalar_subquery()
    oldest = (
        select(victim.c.id)
        .select_from(victim.outerjoin(rule, true()))
        .where(victim.c.state == LOADED, victim.c.in_flight == 0, victim.c.node_id.in_(node_ids))
        .where(victim.c.model_name != for_model, ~func.coalesce(rule.c.spread_all, literal(value=False)))
        .where(healthy > func.coalesce(rule.c.min_replicas, 0))
        .order_by(func.coalesce(victim.c.last_used, victim.c.loaded_at, victim.c.created_at), victim.c.id)
        .limit(1)
        .with_for_update(of=victim)
        .scalar_subquery()
    )
    drained = update(ReplicaRow).where(ReplicaRow.in_flight == 0, ReplicaRow.id == oldest)
    return drained.values(state=ReplicaState.DRAINING.value, changed_at=func.now()).returning(ReplicaRow)


def _lowest_free_index(model: str) -> LateralFromClause:
    cap = func.coalesce(NodeRow.max_replicas_override, NodeRow.max_replicas_per_model)
    numbers = func.generate_series(0, cap - 1).table_valued("number").render_derived("numbers")
    taken = exists().where(
        ReplicaRow.node_id == NodeRow.id, ReplicaRow.model_name == model, ReplicaRow.replica_index == numbers.c.number
    )
    free = (
        select(numbers.c.number.label("number"))
        .where(~taken.correlate(NodeRow, numbers))
        .order_by(numbers.c.number)
        .limit(1)
    )
    return free.lateral("free_index")


def _memory_used(resources_at: datetime | None) -> LateralFromClause:
    """Reserved memory of the node's replicas, and the part of it that its last reading does not show yet."""
    is_unseen: Any = true()
    if resources_at is not None:
        is_unseen = or_(ReplicaRow.loaded_at.is_(None), ReplicaRow.loaded_at > resources_at - SEEN_AFTER)
    reserved = ReplicaRow.reserved
    unseen = func.sum(case((is_unseen, reserved), else_=0))
    sums = select(func.coalesce(func.sum(reserved), 0).label("held"), func.coalesce(unseen, 0).label("unseen"))
    return sums.where(ReplicaRow.node_id == NodeRow.id).correlate(NodeRow).lateral("used")


def _fits(need: int, memory: NodeMemory, used: LateralFromClause) -> ColumnElement[bool]:
    if need == 0:
        return true()
    budget, available = literal(memory.budget, BigInteger), literal(memory.available, BigInteger)
    free = func.least(budget - used.c.held, available - used.c.unseen)  # ignores what is NULL
    return func.coalesce(free >= literal(need, BigInteger), literal(value=False))


def _is_deployed(wanted: NewReplica) -> ColumnElement[bool]:
    """The model still has this revision."""
    return exists().where(and_(ModelRow.name == wanted.model, ModelRow.revision == wanted.revision))


def _is_wanted(wanted: NewReplica, now: Now) -> ColumnElement[bool]:
    """Fewer replicas are settled than the plan wants: another scheduler may have placed one meanwhile."""
    if wanted.upto is None:
        return true()
    if wanted.is_per_node:
        other = ReplicaRow.__table__.alias("other")
        same = and_(other.c.model_name == wanted.model, other.c.revision == wanted.revision)
        return ~exists().where(other.c.node_id == wanted.node_id, same)
    present = settled(wanted.model, wanted.revision, wanted.selector, now)
    return present.correlate(None).scalar_subquery() < wanted.upto

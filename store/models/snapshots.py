"""The snapshot of the scheduler: nodes, replicas, models and rests, read in one transaction."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from nodesmith.domain.budget import parse as parse_budget
from nodesmith.domain.deployment import Deployment
from nodesmith.domain.eligibility import Obstacle
from nodesmith.domain.node import NodeStatus, Protocol
from nodesmith.domain.placement import NodeMemory, PlacementNode, node_memory
from nodesmith.domain.replica import Replica, ReplicaState
from nodesmith.domain.tick import Fleet
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.models.deployments import deployment_of, select_deployments
from nodesmith.store.models.statements import SINK, is_serving
from nodesmith.store.nodes.eligibility import hindered_by
from nodesmith.store.nodes.labels import labels_of_node
from nodesmith.store.nodes.nodes import status_expression
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from nodesmith.store.tables.inventory import InstalledRow
from nodesmith.store.tables.models import LoadFailureRow, ReplicaRow

_parse_budget = lru_cache(1000)(parse_budget)


_IS_SETTLED = ReplicaRow.state == ReplicaState.LOADED.value
_COLUMNS = (
    *(ReplicaRow.id, ReplicaRow.node_id, ReplicaRow.model_name, ReplicaRow.replica_index, ReplicaRow.revision),
    *(ReplicaRow.state, ReplicaRow.reserved, ReplicaRow.loaded_at, ReplicaRow.in_flight, ReplicaRow.last_used),
    *(
        case((_IS_SETTLED, None), else_=each)
        for each in (ReplicaRow.op_id, ReplicaRow.created_at, ReplicaRow.changed_at)
    ),
)
"""a plan does not look at the last three of a loaded replica"""
_REPLICAS = select(*_COLUMNS)
"""plain columns: mapped objects of some thousand replicas would cost more than the plan"""
_STATES = {state.value: state for state in ReplicaState}


class FleetSnapshots:
    """Reads what one tick needs."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database = database
        self._clock = clock

    async def read(self, *, capacity_changed: bool = False) -> Fleet:
        now = self._clock()
        async with self._database.snapshot() as session:
            plain = await session.connection()  # a session would look for mapped objects in every row
            deployments = [deployment_of(found) for found in await plain.execute(select_deployments())]
            replicas = [_replica(row) for row in await plain.execute(_REPLICAS)]
            nodes = await _nodes(plain, now, deployments, replicas)
            rests = await _rests(plain, now)
        return Fleet(now=now, nodes=nodes, deployments=deployments, rests=rests, capacity_changed=capacity_changed)


def _replica(row: Any) -> Replica:
    """A row of `_COLUMNS`."""
    return Replica(
        id=row[0],
        node_id=row[1],
        model=row[2],
        index=row[3],
        revision=row[4],
        state=_STATES[row[5]],
        reserved=row[6],
        loaded_at=row[7],
        in_flight=row[8],
        last_used=row[9],
        op_id=row[10] or "",
        created_at=row[11] or row[7],
        changed_at=row[12] or row[7],
    )


async def _nodes(
    connection: AsyncConnection, now: datetime, deployments: Sequence[Deployment], replicas: Sequence[Replica]
) -> list[PlacementNode]:
    digests = {each.name: each.spec.digests for each in deployments}
    on_node: dict[str, list[Replica]] = defaultdict(list)
    for replica in replicas:
        on_node[replica.node_id].append(replica)
    return [_node(row, on_node[row.id], digests) for row in await connection.execute(_select_nodes(now))]


def _select_nodes(now: datetime) -> Any:
    families = select(func.array_agg(InstalledRow.family)).where(InstalledRow.node_id == NodeRow.id)
    columns = [
        *(NodeRow.id, NodeRow.name, NodeRow.protocol, NodeRow.unreachable_since, NodeRow.left_at, NodeRow.resources),
        *(NodeRow.resources_at, NodeRow.vram_budget, NodeRow.vram_budget_override),
        func.coalesce(NodeRow.max_replicas_override, NodeRow.max_replicas_per_model).label("slots"),
        status_expression(now).label("status"),
        is_serving(now).label("is_serving"),
        hindered_by(Obstacle.NOT_FOR_BACKENDS).label("is_for_others"),
        labels_of_node().label("labels"),
        families.correlate(NodeRow).scalar_subquery().label("families"),
    ]
    return select(*columns).select_from(NodeRow).outerjoin(HeartbeatSinkRow, SINK).order_by(NodeRow.name)


def _node(row: Row[Any], replicas: list[Replica], digests: dict[str, frozenset[str]]) -> PlacementNode:
    memory, resources = _memory(row), row.resources
    return PlacementNode(
        id=row.id,
        name=row.name,
        status=NodeStatus(row.status),
        unreachable_since=row.unreachable_since,
        is_serving=row.is_serving,
        has_left=row.left_at is not None,
        runs_backends=not row.is_for_others,
        protocol=Protocol(row.protocol),
        labels=row.labels or {},
        slots=row.slots,
        budget=memory.budget,
        available=memory.available,
        resources_at=row.resources_at,
        disk_total=resources.get("total_disk"),
        disk_available=resources.get("available_disk"),
        families=frozenset(row.families or ()),
        digests=frozenset().union(*filter(None, (digests.get(each.model) for each in replicas))),
        replicas=replicas,
    )


def _memory(row: Row[Any]) -> NodeMemory:
    override, resources = row.vram_budget_override, row.resources
    limit, total = _parse_budget(row.vram_budget if override is None else override), resources.get("total_vram")
    return node_memory(
        total_vram=total,
        vram_ceiling=limit.ceiling(total),
        available_vram=limit.available(total, resources.get("available_vram")),
        total_ram=resources.get("total_ram"),
        available_ram=resources.get("available_ram"),
    )


async def _rests(connection: AsyncConnection, now: datetime) -> dict[str, dict[str, datetime]]:
    found: dict[str, dict[str, datetime]] = defaultdict(dict)
    wanted = select(LoadFailureRow.model_name, LoadFailureRow.node_id, LoadFailureRow.rest_until)
    for model, node_id, until in await connection.execute(wanted.where(LoadFailureRow.rest_until > now)):
        found[model][node_id] = until
    return found

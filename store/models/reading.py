"""Deployments as people read them: with their replicas, node names and loads, each answer from one snapshot."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from nodesmith.domain.deployment import Deployment
from nodesmith.domain.operation import OPEN, Operation
from nodesmith.domain.replica import STARTING, Replica
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.entities import operation_of
from nodesmith.store.models.deployments import Deployments, deployment_of, select_deployments
from nodesmith.store.models.statements import SINK, is_serving, replica_of
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow, OperationRow
from nodesmith.store.tables.models import ModelRow, ReplicaRow


class DeploymentReader:
    def __init__(self, database: Database, table: Deployments, *, clock: Clock = utc_now) -> None:
        self.table = table
        self._database = database
        self._clock = clock

    async def with_replicas(self) -> list[tuple[Deployment, list[Replica]]]:
        async with self._database.snapshot() as session:
            found = [deployment_of(row) for row in await session.execute(select_deployments())]
            replicas: dict[str, list[Replica]] = defaultdict(list)
            for row, is_reachable in await session.execute(self._select_replicas()):
                replicas[row.model_name].append(replica_of(row, is_reachable=is_reachable))
        return [(each, replicas[each.name]) for each in found]

    async def detail(self, name: str) -> tuple[Deployment, list[Replica], dict[str, str]] | None:
        """One deployment, its replicas, and the names of their nodes."""
        async with self._database.snapshot() as session:
            row = (await session.execute(select_deployments().where(ModelRow.name == name))).first()
            if row is None:
                return None
            found = await session.execute(self._select_replicas().where(ReplicaRow.model_name == name))
            replicas = [replica_of(each, is_reachable=is_reachable) for each, is_reachable in found]
            return deployment_of(row), replicas, await _names(session, replicas)

    async def loading(self, name: str) -> tuple[Operation, Deployment] | None:
        """The load of a model that is furthest on; None if none is open."""
        wanted = (
            select(OperationRow)
            .join(ReplicaRow, ReplicaRow.op_id == OperationRow.op_id)
            .where(ReplicaRow.model_name == name, ReplicaRow.state.in_([state.value for state in STARTING]))
            .where(OperationRow.state.in_([state.value for state in OPEN]))
            .order_by(OperationRow.percentage.desc(), OperationRow.created_at)
            .limit(1)
        )
        async with self._database.snapshot() as session:
            row = (await session.execute(select_deployments().where(ModelRow.name == name))).first()
            operation = await session.scalar(wanted)
            if row is None or operation is None:
                return None
            return operation_of(operation, self._clock()), deployment_of(row)

    async def node_names(self, replicas: Sequence[Replica]) -> Mapping[str, str]:
        async with self._database.reading() as session:
            return await _names(session, replicas)

    async def by_process(self, node_ids: Collection[str]) -> dict[tuple[str, str, int], Replica]:
        """The replicas of these nodes, by node, model and index."""
        async with self._database.reading() as session:
            rows = await session.scalars(select(ReplicaRow).where(ReplicaRow.node_id.in_(node_ids)))
            return {(row.node_id, row.model_name, row.replica_index): replica_of(row) for row in rows}

    async def want(self, name: str) -> bool:
        return await self.table.want(name)

    def _select_replicas(self) -> Select[ReplicaRow, bool]:
        """All replicas, and whether calls reach their nodes."""
        joined = select(ReplicaRow, is_serving(self._clock())).join(NodeRow, NodeRow.id == ReplicaRow.node_id)
        return joined.outerjoin(HeartbeatSinkRow, SINK).order_by(NodeRow.name, ReplicaRow.replica_index)


async def _names(session: AsyncSession, replicas: Sequence[Replica]) -> dict[str, str]:
    ids = {each.node_id for each in replicas}
    found = await session.execute(select(NodeRow.id, NodeRow.name).where(NodeRow.id.in_(ids)))
    return {row.id: row.name for row in found}

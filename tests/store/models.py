"""Helpers that deploy models and place replicas."""

from typing import Any

from sqlalchemy import ColumnElement, select, text, update

from nodesmith.domain.deployment import Deployment, LoadSpec, Rule
from nodesmith.domain.node import Node
from nodesmith.domain.placement import Choice
from nodesmith.domain.replica import Replica
from nodesmith.domain.tick import PlannedPlacement
from nodesmith.store.database import Database
from nodesmith.store.models.deployments import Deployments
from nodesmith.store.models.placing import ReplicaPlacing
from nodesmith.store.models.replicas import ReplicaTable
from nodesmith.store.models.statements import replica_of
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.tables.models import ReplicaRow
from tests.store.clock import NOON
from tests.store.fleet import healthy

GIB = 2**30
NO_LIMIT = 10_000


def a_spec(name: str = "llama", **facts: Any) -> LoadSpec:
    return LoadSpec(**{"model": name, "revision": 0, "backend": "echo-lm", "memory": GIB, **facts})


async def gpu_node(nodes: Nodes, *, gib: int = 8, slots: int = 1, **facts: Any) -> Node:
    """A healthy node with this much VRAM, all of it free."""
    memory = {"total_vram": gib * GIB, "available_vram": gib * GIB}
    return await healthy(nodes, max_replicas_per_model=slots, **{**memory, **facts})


class Stage:
    """The stores of models on one database, with short calls for tests."""

    def __init__(self, database: Database, clock: Any = lambda: NOON) -> None:
        self.database = database
        self.deployments = Deployments(database)
        self.placing = ReplicaPlacing(database, clock=clock)
        self.replicas = ReplicaTable(database, clock=clock)

    async def deploy(self, name: str = "llama", *, rule: Rule | None = None, **facts: Any) -> Deployment:
        wanted = rule or Rule(min_replicas=0, max_replicas=0)
        return await self.deployments.deploy(a_spec(name, **facts), wanted)

    async def place(self, model: Deployment, node: Node, *, upto: int = NO_LIMIT) -> Replica | None:
        return await self.placing.place(model, PlannedPlacement(model.name, Choice(node.id, node.name, 0), upto))

    async def load(self, model: Deployment, node: Node, **facts: Any) -> Replica:
        """Place a replica and record it as loaded, with these columns."""
        placed = await self.place(model, node)
        assert placed is not None
        assert await self.replicas.loaded(placed.op_id, f"{node.name}:{placed.index}", 1)
        if facts:
            async with self.database.session() as session:
                await session.execute(update(ReplicaRow).where(ReplicaRow.id == placed.id).values(**facts))
        return next(each for each in await self.of_node(node.id) if each.id == placed.id)

    async def of_model(self, name: str) -> list[Replica]:
        return await self._select(ReplicaRow.model_name == name)

    async def of_node(self, node_id: str) -> list[Replica]:
        return await self._select(ReplicaRow.node_id == node_id)

    async def _select(self, condition: ColumnElement[bool]) -> list[Replica]:
        order = (ReplicaRow.model_name, ReplicaRow.node_id, ReplicaRow.replica_index)
        async with self.database.reading() as session:
            rows = await session.scalars(select(ReplicaRow).where(condition).order_by(*order))
            return [replica_of(row) for row in rows]

    async def empty(self) -> None:
        """Delete everything of models."""
        async with self.database.session() as session:
            for table in ("replica_holders", "replicas", "models", "model_rules", "load_failures"):
                await session.execute(text(f"DELETE FROM {table}"))

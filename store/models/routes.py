"""What a gateway reads and writes: the replicas that get calls, its own open calls, and models that it waits for."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import psycopg
import structlog
from sqlalchemy import Row, select

from nodesmith.domain.deployment import RoutePolicy
from nodesmith.domain.forwarding import server_name, split_address
from nodesmith.domain.replica import STARTING, ReplicaState, process_key
from nodesmith.domain.routing import DEFAULT_BOUNDS, LoadBounds, ModelRoute, ReplicaRoute, RouteSnapshot
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.database import Database
from nodesmith.store.models.deployments import Deployments
from nodesmith.store.models.holds import Holds
from nodesmith.store.models.statements import LOADED, SINK, is_serving, memory_free
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from nodesmith.store.tables.models import ModelRow, ModelRuleRow, ReplicaRow

CHANNEL = "routes"
POLL_S = 5.0
"""how often the routes are read without a notification: a node that falls silent sends none"""
RETRY_S = 1.0

log = structlog.get_logger(__name__)


class Routes:
    """Several gateways use it side by side."""

    def __init__(self, database: Database, *, clock: Clock = utc_now, poll_s: float = POLL_S) -> None:
        self._database = database
        self._clock = clock
        self._poll_s = poll_s
        self._holds = Holds(database, clock=clock)
        self._deployments = Deployments(database)

    async def read(self) -> RouteSnapshot:
        """All models and the replicas that get calls, from one snapshot."""
        now = self._clock()
        serving = _select_replicas().add_columns(memory_free().label("available"))
        serving = serving.where(ReplicaRow.state == LOADED, is_serving(now))
        starting = _select_replicas().where(ReplicaRow.state.in_([str(state) for state in STARTING]))
        async with self._database.snapshot() as session:
            replicas = (await session.execute(serving)).all()
            begun = {row.model_name: row for row in (await session.execute(starting)).all()}
            models = (await session.execute(_select_models())).all()
        routes = tuple(_replica_route(row) for row in replicas if row.address)
        return RouteSnapshot(tuple(_model_route(row, begun.get(row.name)) for row in models), routes)

    async def synchronise(self, holder_id: str, counts: Mapping[str, int]) -> Mapping[str, int]:
        return await self._holds.sync(holder_id, counts)

    async def leave(self, holder_id: str) -> None:
        await self._holds.leave(holder_id)

    async def want(self, models: set[str]) -> None:
        for name in sorted(models):
            await self._deployments.want(name)

    async def wakeups(self) -> AsyncGenerator[None]:
        """Yield when the routes may have changed: at once, on NOTIFY, after a reconnect, and every few seconds."""
        while True:
            try:
                async with await self._listen() as connection:
                    while True:
                        yield
                        async for _ in connection.notifies(timeout=self._poll_s, stop_after=1):
                            pass
            except psycopg.OperationalError as error:
                log.warning("routes.listen_lost", error=str(error).strip())
                await asyncio.sleep(RETRY_S)
                yield

    async def _listen(self) -> psycopg.AsyncConnection:
        connection = await psycopg.AsyncConnection.connect(
            self._database.conninfo, autocommit=True, connect_timeout=2, application_name="nodesmith-routes"
        )
        await connection.execute(f"LISTEN {CHANNEL}")
        return connection


def _select_replicas() -> Any:
    row = ReplicaRow
    columns = (row.id, row.model_name, row.replica_index, row.node_id, row.state, row.address, row.in_flight)
    return (
        select(*columns, row.last_used, NodeRow.name.label("node"))
        .join(NodeRow, NodeRow.id == row.node_id)
        .outerjoin(HeartbeatSinkRow, SINK)
        .order_by(row.id)
    )


def _select_models() -> Any:
    rule = ModelRuleRow
    return (
        select(
            *(ModelRow.name, ModelRow.created_at, ModelRow.unsatisfiable_why),
            *(rule.policy, rule.balance_abs_threshold, rule.balance_rel_threshold),
        )
        .outerjoin(rule, rule.model_name == ModelRow.name)
        .order_by(ModelRow.name)
    )


def _replica_route(row: Row[Any]) -> ReplicaRoute:
    address, is_forwarded = split_address(row.address)
    key = process_key(row.model_name, row.replica_index)
    return ReplicaRoute(
        id=row.id,
        model=row.model_name,
        node_id=row.node_id,
        address=address,
        server_name=server_name(row.node_id, key) if is_forwarded else "",
        in_flight=row.in_flight,
        last_used=row.last_used.timestamp() if row.last_used else 0.0,
        available=row.available or 0,
    )


def _model_route(row: Row[Any], begun: Row[Any] | None) -> ModelRoute:
    return ModelRoute(
        name=row.name,
        bounds=_bounds(row),
        loading=_loading(row, begun),
        created_at=row.created_at.timestamp(),
    )


def _bounds(row: Row[Any]) -> LoadBounds | None:
    """How far the prefix of a prompt decides; 0 inherits the default."""
    if row.policy == RoutePolicy.ROUND_ROBIN:
        return None
    absolute = row.balance_abs_threshold or DEFAULT_BOUNDS.absolute
    return LoadBounds(absolute, row.balance_rel_threshold or DEFAULT_BOUNDS.relative)


def _loading(row: Row[Any], begun: Row[Any] | None) -> dict[str, str]:
    """What clients are told while no replica is loaded."""
    if begun is not None:
        return {"state": str(ReplicaState(begun.state)), "node": begun.node}
    return {"state": "waiting", "reason": row.unsatisfiable_why} if row.unsatisfiable_why else {"state": "waiting"}

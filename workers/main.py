"""The worker process: connects to the servers, builds the activities and runs both Temporal workers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import structlog
import uvloop
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from nodesmith.activities.batches import BatchActivities
from nodesmith.activities.fleet_monitor import FleetActivities
from nodesmith.activities.node import NodeActivities
from nodesmith.activities.records import RecordActivities
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import Bus, connect_control
from nodesmith.bus.credentials import CredentialIssuer
from nodesmith.bus.heartbeats import HeartbeatSink
from nodesmith.bus.presence import Presence
from nodesmith.bus.reports import ReportHub
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import FleetWatch
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.runtime import logs, process_exit
from nodesmith.runtime.monitor_run import MonitorRun
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns, connect, prepare_namespace
from nodesmith.runtime.tls_trust import trusting
from nodesmith.services.batches.repair import BatchRepair
from nodesmith.services.nodes.identity import DuplicateIdentities
from nodesmith.services.nodes.inventory import Inventory
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.liveness import Liveness
from nodesmith.services.nodes.reachability import ReachabilityTracker
from nodesmith.services.nodes.revocation import Revocation
from nodesmith.services.operations.monitor_guard import MonitorGuard
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.operations.repair import Repair
from nodesmith.services.operations.retention import Retention
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.lifecycle import NodeLife
from nodesmith.store.nodes.nats_credentials import NatsCredentials
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.history import History
from nodesmith.store.operations.monitor_ticks import MonitorTicks
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.permits import PermitTable
from nodesmith.workers.inventory_refresh import InventoryRefresher, LabelRefresher
from nodesmith.workers.monitor_guard import MonitorCheckLoop
from nodesmith.workers.outcome_bridge import Gauges, OutcomeBridge
from nodesmith.workers.registry import WORKFLOWS, control_activities, node_activities
from nodesmith.workers.sandbox import Sandbox

log = structlog.stdlib.get_logger(__name__)

GRACE = timedelta(seconds=2)
STICKY = timedelta(seconds=3)
"""how long a run waits for its previous worker before another one may continue it"""
POLLERS = 20
"""workflow tasks without a waiting poller are stored first, which costs more than many open polls"""
RETRY_S = 0.5

T = TypeVar("T")


async def serve(settings: ControlSettings, stop: asyncio.Event) -> int:
    """Connect, work until `stop`, close in reverse order; waits for servers that are not up yet."""
    async with AsyncExitStack() as closing:
        database = Database(settings.database_url, settings.secret(settings.database_password_file), pool_size=20)
        closing.push_async_callback(database.close)
        issuer = CredentialIssuer(settings.secret(settings.nats_account_seed_file))
        bus = await connect_control(
            settings.nats_url,
            issuer,
            name="worker",
            keys=Nodes(database),
            connect_within=0,
            tls=trusting(settings.ca_file),
        )
        closing.push_async_callback(bus.close)
        starting = asyncio.gather(
            _retry_until_up(database.migrate), _retry_until_up(lambda: _connect_temporal(settings))
        )
        if (servers := await _unless_stopped(starting, stop)) is not None:
            await closing.enter_async_context(working(settings, servers[1], database, bus))
            log.info("worker ready")
            await stop.wait()
    return 0


@asynccontextmanager
async def working(settings: ControlSettings, temporal: Client, database: Database, bus: Bus) -> AsyncIterator[None]:
    """Run the Temporal workers of both queues and the background loops."""
    operations, nodes, runs = OperationTable(database), Nodes(database), TemporalRuns(temporal)
    hub = ReportHub(bus)
    presence, life = Presence(bus), NodeLife(database)
    link = ReachabilityTracker(NodeClient(bus, hub), nodes, _now)
    bridge, gauges = OutcomeBridge(operations, runs, InventoryTable(database)), Gauges(operations)
    hub.on_unclaimed_outcome(bridge.take)
    hub.on_progress(gauges.take)
    await hub.start()
    liveness = Liveness(
        nodes, operations, runs, link, DuplicateIdentities(life, presence), InventoryTable(database), _now
    )
    on_node = NodeActivities(link, runs, PermitTable(database))
    verified = VerifiedRecords(operations, bus.signatures)
    records = RecordActivities(verified, AuditTrail(database))
    batches = BatchActivities(OperationLock(operations, runs, None), nodes, operations, runs, Batches(database))
    lifecycle = Lifecycle(nodes, life, runs, presence, _now, Revocation(NatsCredentials(database), None, _now))
    retention = Retention(History(database), AuditTrail(database), _now, settings.history_kept)
    ticks = MonitorTicks(database)
    repairs = Repair(nodes, operations, runs, link, verified, _now), BatchRepair(Batches(database), runs, _now)
    fleet = FleetActivities(*repairs, lifecycle, retention, ticks)
    watch = FleetWatch(tick=settings.fleet_tick)
    guard = MonitorGuard(ticks, MonitorRun(temporal), watch, settings.monitor_silence)
    async with (
        Worker(
            temporal,
            task_queue=names.CONTROL_QUEUE,
            workflows=WORKFLOWS,
            workflow_runner=Sandbox(),
            activities=control_activities(on_node, records, fleet, batches),
            max_concurrent_activities=settings.control_slots,
            sticky_queue_schedule_to_start_timeout=STICKY,
            graceful_shutdown_timeout=GRACE,
        ),
        Worker(
            temporal,
            task_queue=names.node_queue(),
            workflows=WORKFLOWS,
            workflow_runner=Sandbox(),
            activities=node_activities(on_node, records),
            max_concurrent_activities=settings.node_slots,
            max_concurrent_local_activities=settings.control_slots,
            workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(POLLERS),
            sticky_queue_schedule_to_start_timeout=STICKY,
            graceful_shutdown_timeout=GRACE,
        ),
        _in_background(
            bridge.run(),
            gauges.run(),
            HeartbeatSink(bus, liveness.process).run(asyncio.Event()),
            InventoryRefresher(Inventory(InventoryTable(database), link, _now)).run(),
            LabelRefresher(Labels(database)).run(),
            MonitorCheckLoop(guard, every=settings.monitor_check.total_seconds()).run(),
        ),
    ):
        yield
    await link.close()


@asynccontextmanager
async def _in_background(*coroutines: Awaitable[None]) -> AsyncIterator[None]:
    """Run the coroutines as background tasks while the block lasts."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _connect_temporal(settings: ControlSettings) -> Client:
    """Connect, and register the search attributes before any worker polls."""
    client = await connect(settings)
    await prepare_namespace(client)
    return client


async def _retry_until_up(attempt: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await attempt()
        except (ServiceUnavailable, RPCError, RuntimeError, OSError) as error:
            log.info("waiting for a server", error=str(error))
            await asyncio.sleep(RETRY_S)


async def _unless_stopped(starting: "asyncio.Future[T]", stop: asyncio.Event) -> T | None:
    stopped = asyncio.create_task(stop.wait())
    stopped.add_done_callback(lambda _: starting.cancel())
    try:
        return await starting
    except asyncio.CancelledError:
        return None
    finally:
        stopped.cancel()


def _now() -> datetime:
    return datetime.now(UTC)


def main() -> None:
    settings = ControlSettings()
    logs.configure(settings.log_level)
    process_exit.run(lambda stop: serve(settings, stop), loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()

"""The worker process: compose, register, run."""

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

from activities.batches import BatchActivities
from activities.fleet import FleetActivities
from activities.node import NodeActivities
from activities.records import RecordActivities
from bus.commands import NodeClient
from bus.connection import Bus, connect_control
from bus.credentials import CredentialIssuer
from bus.heartbeats import HeartbeatSink
from bus.presence import Presence
from bus.reports import ReportHub
from contracts import temporal as names
from contracts.temporal import FleetWatch
from domain.errors import ServiceUnavailable
from runtime import logs, process
from runtime.monitor import MonitorRun
from runtime.settings import ControlSettings
from runtime.temporal import TemporalRuns, connect, prepare_namespace
from runtime.trust import trusting
from services.batch_repair import BatchRepair
from services.gate import Gate
from services.identity import Impostors
from services.inventory import Inventory
from services.lifecycle import Lifecycle
from services.liveness import Liveness
from services.monitoring import MonitorGuard
from services.repair import Repair
from services.retention import Retention
from services.revocation import Revocation
from services.witness import Witness
from store.audit import AuditTrail
from store.batches import Batches
from store.database import Database
from store.history import History
from store.inventory import InventoryTable
from store.labels import Labels
from store.life import NodeLife
from store.monitor import MonitorTicks
from store.nodes import Nodes
from store.operations import OperationTable
from store.permits import PermitTable
from store.voices import Voices
from workers.bridge import Gauges, OutcomeBridge
from workers.inventory import InventoryKeeper, LabelKeeper
from workers.monitor import MonitorKeeper
from workers.registry import WORKFLOWS, control_activities, node_activities
from workers.sandbox import Sandbox

log = structlog.stdlib.get_logger(__name__)

GRACE = timedelta(seconds=2)
STICKY = timedelta(seconds=3)
"""how long a run waits for the worker that had it, before any other may go on with it"""
POLLERS = 20
"""who find nobody waiting are written down first, which is dearer than a waiting call"""
RETRY_S = 0.5

T = TypeVar("T")


async def serve(settings: ControlSettings, stop: asyncio.Event) -> int:
    """Connect, work until `stop`, close in reverse; a server that is not there yet is waited for."""
    async with AsyncExitStack() as closing:
        database = Database(settings.database_url, settings.secret(settings.database_password_file), pool_size=20)
        closing.push_async_callback(database.close)
        issuer = CredentialIssuer(settings.secret(settings.nats_account_seed_file))
        bus = await connect_control(
            settings.nats_url, issuer, name="worker", patience=0, tls=trusting(settings.ca_file)
        )
        closing.push_async_callback(bus.close)
        starting = asyncio.gather(_until_there(database.migrate), _until_there(lambda: _temporal(settings)))
        if (servers := await _unless_stopped(starting, stop)) is not None:
            await closing.enter_async_context(working(settings, servers[1], database, bus))
            log.info("worker ready")
            await stop.wait()
    return 0


@asynccontextmanager
async def working(settings: ControlSettings, temporal: Client, database: Database, bus: Bus) -> AsyncIterator[None]:
    """The workers of both queues, and what listens beside them."""
    operations, nodes, runs = OperationTable(database), Nodes(database), TemporalRuns(temporal)
    hub = ReportHub(bus)
    presence, life = Presence(bus), NodeLife(database)
    link = Witness(NodeClient(bus, hub), nodes, _now)
    bridge, gauges = OutcomeBridge(operations, runs), Gauges(operations)
    hub.on_unclaimed_outcome(bridge.take)
    hub.on_progress(gauges.take)
    await hub.start()
    liveness = Liveness(nodes, operations, runs, link, Impostors(life, presence), _now)
    on_node, records = NodeActivities(link, runs, PermitTable(database)), RecordActivities(operations)
    batches = BatchActivities(Gate(operations, runs), nodes, operations, runs, Batches(database))
    lifecycle = Lifecycle(nodes, life, runs, presence, _now, Revocation(Voices(database), None, _now))
    retention = Retention(History(database), AuditTrail(database), _now, settings.history_kept)
    ticks = MonitorTicks(database)
    repairs = Repair(nodes, operations, runs, link, _now), BatchRepair(Batches(database), runs, _now)
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
        _beside(
            bridge.run(),
            gauges.run(),
            HeartbeatSink(bus, liveness.heard).run(asyncio.Event()),
            InventoryKeeper(Inventory(InventoryTable(database), link, _now)).run(),
            LabelKeeper(Labels(database)).run(),
            MonitorKeeper(guard, every=settings.monitor_check.total_seconds()).run(),
        ),
    ):
        yield
    await link.close()


@asynccontextmanager
async def _beside(*coroutines: Awaitable[None]) -> AsyncIterator[None]:
    """Run these as long as the block lasts."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _temporal(settings: ControlSettings) -> Client:
    """Connected, and with the search attributes registered before anything polls."""
    client = await connect(settings)
    await prepare_namespace(client)
    return client


async def _until_there(attempt: Callable[[], Awaitable[T]]) -> T:
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
    process.run(lambda stop: serve(settings, stop), loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()

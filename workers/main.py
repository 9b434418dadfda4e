"""The worker process: connects to the servers, builds the activities and runs both Temporal workers."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TypeVar

import structlog
import uvloop
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from nodesmith.activities.batches import BatchActivities
from nodesmith.activities.fleet_monitor import FleetActivities
from nodesmith.activities.model_scheduler import ModelActivities
from nodesmith.activities.node import NodeActivities
from nodesmith.activities.records import RecordActivities
from nodesmith.activities.watch_operation import WatchActivities
from nodesmith.bus.heartbeats import HeartbeatSink
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.contracts.temporal import operations as names
from nodesmith.control.graph import ControlGraph
from nodesmith.control.servers import open_bus, open_database
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.runtime import log_setup, process_exit
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect, prepare_namespace
from nodesmith.workers.inventory_refresh import InventoryRefresher, LabelRefresher
from nodesmith.workers.monitor_guard import MonitorCheckLoop
from nodesmith.workers.outcome_bridge import Gauges, OutcomeBridge
from nodesmith.workers.sandbox import Sandbox
from nodesmith.workers.silent_holders import HolderCleanup
from nodesmith.workers.task_queues import WORKFLOWS, control_activities, node_activities

log = structlog.stdlib.get_logger(__name__)

GRACE = timedelta(seconds=2)
STICKY = timedelta(seconds=3)
"""how long a run waits for its previous worker before another one may continue it"""
POLLERS = 20
"""workflow tasks without a waiting poller are stored first, which costs more than many open polls"""
RETRY_S = 0.5
POOL_SIZE = 20

T = TypeVar("T")


async def serve(settings: ControlSettings, stop: asyncio.Event) -> int:
    """Connect, work until `stop`, close in reverse order; waits for servers that are not up yet."""
    async with AsyncExitStack() as closing:
        database = open_database(settings, closing, pool_size=POOL_SIZE)
        issuer = CredentialIssuer(settings.secret(settings.nats_account_seed_file))
        bus = await open_bus(settings, database, issuer, closing, name="worker")
        starting = asyncio.gather(
            _retry_until_up(database.migrate), _retry_until_up(lambda: _connect_temporal(settings))
        )
        if (servers := await _unless_stopped(starting, stop)) is not None:
            await closing.enter_async_context(working(ControlGraph(settings, database, bus, servers[1])))
            log.info("worker ready")
            await stop.wait()
    return 0


@asynccontextmanager
async def working(graph: ControlGraph) -> AsyncIterator[None]:
    """Run the Temporal workers of both queues and the background loops."""
    settings, temporal = graph.settings, graph.temporal
    bridge, gauges = OutcomeBridge(graph.operations, graph.runs, graph.inventory_table), Gauges(graph.operations)
    graph.reports.on_unclaimed_outcome(bridge.take)
    graph.reports.on_progress(gauges.take)
    await graph.reports.start()
    on_node = NodeActivities(graph.link, graph.runs, graph.permits)
    records = RecordActivities(graph.records, graph.audit)
    batches = BatchActivities(graph.lock, graph.nodes, graph.operations, graph.runs, graph.batches)
    fleet = FleetActivities(graph.repair, graph.batch_repair, graph.lifecycle, graph.retention, graph.monitor_ticks)
    watches = WatchActivities(graph.operations)
    models = ModelActivities(graph.model_scheduler, graph.placement_feed, graph.scheduler_ticks)
    checks = (graph.monitor_guard, graph.scheduler_guard)
    async with (
        Worker(
            temporal,
            task_queue=names.CONTROL_QUEUE,
            workflows=WORKFLOWS,
            workflow_runner=Sandbox(),
            activities=control_activities(on_node, records, fleet, batches, watches=watches, models=models),
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
            HeartbeatSink(graph.bus, graph.liveness.process).run(asyncio.Event()),
            InventoryRefresher(graph.inventory).run(),
            LabelRefresher(graph.labels).run(),
            HolderCleanup(graph.call_holds).run(),
            *(MonitorCheckLoop(each, every=settings.monitor_check.total_seconds()).run() for each in checks),
        ),
    ):
        yield
    await graph.link.close()


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


def main() -> None:
    gc.freeze()  # what was imported stays: a full collection does not look at it
    settings = ControlSettings()
    log_setup.configure(settings.log_level)
    process_exit.run(lambda stop: serve(settings, stop), loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    main()

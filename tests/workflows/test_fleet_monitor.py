"""The fleet monitor and the model scheduler continue on another worker when their own is lost."""

import asyncio
import uuid
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from nodesmith.contracts.temporal import models
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import FleetWatch
from nodesmith.workflows import policy
from nodesmith.workflows.fleet_monitor import FleetMonitor
from nodesmith.workflows.model_scheduler import ModelScheduler
from tests.deadlines import HANGS_S

GONE_ON = timedelta(seconds=30)


class Watches:
    """The first falls silent, as a worker does that was killed; the others live."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[int] = asyncio.Queue()

    @activity.defn(name=names.WATCH_FLEET)
    async def watch_fleet(self, watch: FleetWatch) -> None:
        await self.watch(watch)

    async def watch(self, watch: FleetWatch) -> None:
        attempt = activity.info().attempt
        self.begun.put_nowait(attempt)
        while attempt > 1:
            activity.heartbeat()
            await asyncio.sleep(watch.heartbeat_timeout.total_seconds() / 4)
        await asyncio.sleep(3600)


async def test_another_worker_goes_on_when_one_falls_silent(client: Client) -> None:
    watches, queue = Watches(), f"fleet-{uuid.uuid4()}"
    watch = FleetWatch(heartbeat_timeout=timedelta(seconds=1))
    async with Worker(client, task_queue=queue, workflows=[FleetMonitor], activities=[watches.watch_fleet]):
        handle = await client.start_workflow(FleetMonitor.run, watch, id=queue, task_queue=queue)
        assert [await asyncio.wait_for(watches.begun.get(), HANGS_S) for _ in range(2)] == [1, 2]
        await handle.terminate("seen")


class SchedulerWatches(Watches):
    @activity.defn(name=models.WATCH_MODELS)
    async def watch_models(self, watch: FleetWatch) -> None:
        await self.watch(watch)


async def test_another_worker_continues_the_model_scheduler(client: Client) -> None:
    watches, queue = SchedulerWatches(), f"models-{uuid.uuid4()}"
    watch = FleetWatch(heartbeat_timeout=timedelta(seconds=1))
    async with Worker(client, task_queue=queue, workflows=[ModelScheduler], activities=[watches.watch_models]):
        handle = await client.start_workflow(ModelScheduler.run, watch, id=queue, task_queue=queue)
        assert [await asyncio.wait_for(watches.begun.get(), HANGS_S) for _ in range(2)] == [1, 2]
        await handle.terminate("seen")


def test_by_default_that_takes_less_than_half_a_minute() -> None:
    watch = FleetWatch()
    options = policy.watch_fleet(watch)
    assert watch.heartbeat_timeout + options["retry_policy"].initial_interval < GONE_ON

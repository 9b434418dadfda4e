"""The long watch over the fleet."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog
from temporalio import activity

from contracts import temporal as names
from contracts.temporal import FleetWatch
from domain.errors import NodesmithError
from services.batch_repair import BatchRepair
from services.lifecycle import Lifecycle
from services.ports import MonitorTicks
from services.repair import Repair
from services.retention import Retention

log = structlog.get_logger()


class FleetActivities:
    def __init__(
        self, repair: Repair, batches: BatchRepair, lifecycle: Lifecycle, retention: Retention, ticks: MonitorTicks
    ) -> None:
        self._repair = repair
        self._batches = batches
        self._lifecycle = lifecycle
        self._retention = retention
        self._ticks = ticks

    @activity.defn(name=names.WATCH_FLEET)
    async def watch_fleet(self, watch: FleetWatch) -> None:
        """Look at every tick; a server that is away costs one tick, not the watch."""
        ends = time.monotonic() + watch.rest.total_seconds()
        async with _heartbeating(every=watch.heartbeat_timeout / 4):
            while time.monotonic() < ends:
                await self._look()
                await asyncio.sleep(watch.tick.total_seconds())

    async def _look(self) -> None:
        """Whatever it does may be done twice: another watch may run for a while after a worker was lost."""
        try:
            await self._repair.once()
            await self._batches.once()
            await self._lifecycle.sweep()
            await self._retention.sweep()
            await self._ticks.write(activity.info().workflow_run_id or "")
        except NodesmithError as error:
            log.warning("fleet watch: skipped a tick", error=str(error))


@asynccontextmanager
async def _heartbeating(*, every: timedelta) -> AsyncIterator[None]:
    """Beside the work: a slow tick is no lost worker."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(every.total_seconds())

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()

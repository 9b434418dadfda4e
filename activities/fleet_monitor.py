"""The long-running activity that repairs rows and sweeps the fleet at every tick."""

import asyncio
import time

import structlog
from temporalio import activity

from nodesmith.activities.heartbeats import heartbeating
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import FleetWatch
from nodesmith.domain.errors import NodesmithError
from nodesmith.services.batches.repair import BatchRepair
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.operations.repair import Repair
from nodesmith.services.operations.retention import Retention
from nodesmith.services.ports import MonitorTicks

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
        """Run one tick after another; an unreachable server skips a tick and does not end the activity."""
        ends = time.monotonic() + watch.rest.total_seconds()
        async with heartbeating(every=watch.heartbeat_timeout / 4):
            while time.monotonic() < ends:
                await self._tick()
                await asyncio.sleep(watch.tick.total_seconds())

    async def _tick(self) -> None:
        """Run every sweep once. All are idempotent, because two watches may overlap after a worker was lost."""
        try:
            await self._repair.once()
            await self._batches.once()
            await self._lifecycle.sweep()
            await self._retention.sweep()
            await self._ticks.write(activity.info().workflow_run_id or "")
        except NodesmithError as error:
            log.warning("fleet watch: skipped a tick", error=str(error))

"""The long-running activity that runs the model scheduler at every tick and after every change."""

import time
from contextlib import aclosing

import structlog
from temporalio import activity

from nodesmith.activities.heartbeats import heartbeating
from nodesmith.contracts.temporal import models as names
from nodesmith.contracts.temporal.operations import FleetWatch
from nodesmith.domain.errors import NodesmithError
from nodesmith.services.models.ports import PlacementFeed
from nodesmith.services.models.scheduler import ModelScheduler
from nodesmith.services.ports import MonitorTicks

log = structlog.get_logger()


class ModelActivities:
    def __init__(self, scheduler: ModelScheduler, feed: PlacementFeed, ticks: MonitorTicks) -> None:
        self._scheduler = scheduler
        self._feed = feed
        self._ticks = ticks

    @activity.defn(name=names.WATCH_MODELS)
    async def watch_models(self, watch: FleetWatch) -> None:
        """Run one tick after another; an unreachable server skips a tick and does not end the activity."""
        ends = time.monotonic() + watch.rest.total_seconds()
        async with heartbeating(every=watch.heartbeat_timeout / 4), aclosing(self._feed.wakeups()) as wakeups:
            missed = False
            async for changed in wakeups:
                missed = not await self._tick(capacity_changed=changed or missed)
                if time.monotonic() >= ends:
                    return

    async def _tick(self, *, capacity_changed: bool) -> bool:
        """Run one tick; False if a server did not answer, so that its news counts again."""
        try:
            plan = await self._scheduler.tick(capacity_changed=capacity_changed)
            if plan.again_within is not None:
                self._feed.hasten(plan.again_within.total_seconds())
            await self._ticks.write(activity.info().workflow_run_id or "")
        except NodesmithError as error:
            log.warning("model scheduler: skipped a tick", error=str(error))
            return False
        return True

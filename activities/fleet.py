"""The long watch over the fleet."""

import asyncio
import time

import structlog
from temporalio import activity

from contracts import temporal as names
from contracts.temporal import FleetWatch
from domain.errors import NodesmithError
from services.repair import Repair

log = structlog.get_logger()


class FleetActivities:
    def __init__(self, repair: Repair) -> None:
        self._repair = repair

    @activity.defn(name=names.WATCH_FLEET)
    async def watch_fleet(self, watch: FleetWatch) -> None:
        """Repair at every tick; a server that is away costs one tick, not the watch."""
        ends = time.monotonic() + watch.rest.total_seconds()
        while time.monotonic() < ends:
            activity.heartbeat()
            try:
                await self._repair.once()
            except NodesmithError as error:
                log.warning("fleet watch: skipped a tick", error=str(error))
            await asyncio.sleep(watch.tick.total_seconds())

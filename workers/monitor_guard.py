"""The loop of the worker that starts a monitor, and restarts it when it is gone or silent."""

import asyncio

import structlog

from nodesmith.domain.errors import NodesmithError
from nodesmith.services.operations.monitor_guard import MonitorGuard

log = structlog.stdlib.get_logger(__name__)


class MonitorCheckLoop:
    """Runs the monitor check every `every` seconds while the worker runs."""

    def __init__(self, guard: MonitorGuard, *, every: float) -> None:
        self._guard = guard
        self._every = every

    async def run(self) -> None:
        while True:
            try:
                await self._guard.once()
            except NodesmithError as error:
                log.info("monitor not checked", monitor=self._guard.name, error=str(error))
            await asyncio.sleep(self._every)

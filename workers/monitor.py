"""What starts the fleet monitor, and starts it again when it is gone or silent."""

import asyncio

import structlog

from domain.errors import NodesmithError
from services.monitoring import MonitorGuard

log = structlog.stdlib.get_logger(__name__)


class MonitorKeeper:
    """Looks every so many seconds, for as long as the worker lives."""

    def __init__(self, guard: MonitorGuard, *, every: float) -> None:
        self._guard = guard
        self._every = every

    async def run(self) -> None:
        while True:
            try:
                await self._guard.once()
            except NodesmithError as error:
                log.info("fleet monitor not checked", error=str(error))
            await asyncio.sleep(self._every)

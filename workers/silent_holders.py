"""The loop of the worker that forgets gateways and routers that died: their calls no longer count."""

import asyncio

import structlog

from nodesmith.domain.errors import NodesmithError
from nodesmith.services.models.ports import SilentHolders

log = structlog.stdlib.get_logger(__name__)

EVERY_S = 5.0


class HolderCleanup:
    """Runs in every worker; two at once do no harm."""

    def __init__(self, holders: SilentHolders, *, every_s: float = EVERY_S) -> None:
        self._holders = holders
        self._every_s = every_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                for holder in await self._holders.delete_silent():
                    log.warning("holder.silent", holder=holder)
            except NodesmithError as error:
                log.info("silent holders not deleted", error=str(error))

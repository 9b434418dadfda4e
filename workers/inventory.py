"""Keeps the inventories fresh: after a new boot, after an operation ended, and now and then."""

import asyncio

import structlog

from domain.errors import NodesmithError
from services.inventory import AT_ONCE, Inventory

log = structlog.stdlib.get_logger(__name__)

LOOK_EVERY_S = 1.0


class InventoryKeeper:
    """Looks for copies that may be wrong. Two of them at once do double work, and no harm."""

    def __init__(self, inventory: Inventory, *, every: float = LOOK_EVERY_S) -> None:
        self._inventory = inventory
        self._every = every

    async def run(self) -> None:
        while True:
            if await self._round() < AT_ONCE:
                await asyncio.sleep(self._every)

    async def _round(self) -> int:
        try:
            return await self._inventory.refresh_stale()
        except NodesmithError as error:
            log.info("inventories not refreshed", error=str(error))
            return 0

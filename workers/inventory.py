"""What keeps inventories and automatic labels true while nodes live."""

import asyncio

import structlog

from domain.errors import NodesmithError
from services.inventory import AT_ONCE, Inventory
from store.labels import Labels

log = structlog.stdlib.get_logger(__name__)

LOOK_EVERY_S = 1.0
LABELS_EVERY_S = 15.0


class LabelKeeper:
    """Automatic labels follow what nodes say of their hardware between two registrations."""

    def __init__(self, labels: Labels, *, every: float = LABELS_EVERY_S) -> None:
        self._labels = labels
        self._every = every

    async def run(self) -> None:
        while True:
            try:
                await self._labels.follow_facts()
            except NodesmithError as error:
                log.info("labels not compared with the facts", error=str(error))
            await asyncio.sleep(self._every)


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

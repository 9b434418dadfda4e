"""Loops of the worker that refresh inventories and automatic labels of nodes."""

import asyncio

import structlog

from nodesmith.domain.errors import NodesmithError
from nodesmith.services.nodes.inventory import CONCURRENCY, Inventory
from nodesmith.store.nodes.labels import Labels

log = structlog.stdlib.get_logger(__name__)

REFRESH_EVERY_S = 1.0
LABELS_EVERY_S = 15.0


class LabelRefresher:
    """Updates automatic labels when a node reports other hardware between two registrations."""

    def __init__(self, labels: Labels, *, every: float = LABELS_EVERY_S) -> None:
        self._labels = labels
        self._every = every

    async def run(self) -> None:
        while True:
            try:
                await self._labels.update_automatic()
            except NodesmithError as error:
                log.info("labels not compared with the facts", error=str(error))
            await asyncio.sleep(self._every)


class InventoryRefresher:
    """Refreshes inventory copies that may be out of date. Two workers may do this at once without harm."""

    def __init__(self, inventory: Inventory, *, every: float = REFRESH_EVERY_S) -> None:
        self._inventory = inventory
        self._every = every

    async def run(self) -> None:
        while True:
            if await self._refresh_stale() < CONCURRENCY:
                await asyncio.sleep(self._every)

    async def _refresh_stale(self) -> int:
        try:
            return await self._inventory.refresh_stale()
        except NodesmithError as error:
            log.info("inventories not refreshed", error=str(error))
            return 0

"""Inventory: keeps a copy of the backend list of each node."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from nodesmith.contracts.nats.messages import Installed
from nodesmith.domain.eligibility import runs_backends
from nodesmith.domain.errors import NoAnswer, NodesmithError
from nodesmith.domain.inventory import FleetBackend
from nodesmith.domain.node import Node
from nodesmith.domain.selector import EVERYTHING, Selector
from nodesmith.services.ports import InventoryTable, NodeLink

log = structlog.get_logger()

ANSWER_S = 5.0
CONCURRENCY = 50
"""nodes asked concurrently; the next group follows immediately"""
BACK_OFF_S = 15.0
"""back-off after a node did not answer"""


@dataclass(frozen=True)
class Inventory:
    """Asks nodes for their lists and stores the replies; readers use the stored copy."""

    table: InventoryTable
    link: NodeLink
    clock: Callable[[], datetime]
    _not_before: dict[str, float] = field(default_factory=dict)

    async def of_node(self, node_id: str) -> list[Installed]:
        return await self.table.of_node(node_id)

    async def having(self, family: str) -> list[tuple[str, str, Installed]]:
        """Every node that has that backend: id, name, and the installed build."""
        return await self.table.having(family)

    async def spread(self, family: str = "", selector: Selector = EVERYTHING) -> list[FleetBackend]:
        """The builds of each backend in the fleet, and the nodes that differ from the majority."""
        return await self.table.spread(family=family, selector=selector)

    async def copy(self, node: Node) -> tuple[datetime | None, list[Installed]]:
        """The stored copy of a node's list, and when it was taken; None: never."""
        return await self.table.copy(node.id)

    async def refresh(self, node: Node) -> list[Installed]:
        """Ask the node for its list and store it; raises when the node does not answer."""
        if not runs_backends(node):
            return []
        asked_at = self.clock()
        answer = await self.link.list_backends(node.id, within=ANSWER_S)
        if answer.error:
            raise NoAnswer(f"Node {node.name} could not list its backends: {answer.error}", node=node.name)
        await self.table.replace(node.id, answer.backends, asked_at=asked_at, boot_id=node.boot_id)
        return answer.backends

    async def refresh_stale(self) -> int:
        """Ask every node whose copy may be stale; returns how many answered."""
        stale = await self.table.stale(limit=CONCURRENCY, skip=self._backing_off())
        answered = await asyncio.gather(*(self._try_refresh(node) for node in stale))
        return sum(answered)

    async def _try_refresh(self, node: Node) -> bool:
        try:
            await self.refresh(node)
        except NodesmithError as error:
            self._not_before[node.id] = time.monotonic() + BACK_OFF_S
            log.info("inventory not taken", node=node.name, error=str(error))
            return False
        return True

    def _backing_off(self) -> Sequence[str]:
        """Nodes in back-off after a failed request; drops the expired entries."""
        now = time.monotonic()
        for node_id in [node_id for node_id, until in self._not_before.items() if until <= now]:
            del self._not_before[node_id]
        return list(self._not_before)

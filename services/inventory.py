"""Inventory: what is on the nodes' disks, copied from the nodes themselves."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from contracts.inventory import BackendSpread, NodeInventory
from contracts.messages import Installed
from contracts.node_http import NodeView
from domain.errors import NoAnswer, NodesmithError
from domain.node import NodeType
from domain.selector import EVERYTHING, Selector
from services.ports import InventoryTable, NodeLink

log = structlog.get_logger()

ANSWER_S = 5.0
AT_ONCE = 50
"""nodes asked in one go; the next go follows at once"""
PAUSE_S = 15.0
"""after a node did not answer"""


@dataclass(frozen=True)
class Inventory:
    """Asks nodes for their lists and keeps the answers; whoever only wants to know reads the copy."""

    table: InventoryTable
    link: NodeLink
    clock: Callable[[], datetime]
    _not_before: dict[str, float] = field(default_factory=dict)

    async def of_node(self, node_id: str) -> list[Installed]:
        return await self.table.of_node(node_id)

    async def having(self, family: str) -> list[tuple[str, str, Installed]]:
        """Every node that has that backend: id, name, and what it has."""
        return await self.table.having(family)

    async def spread(self, family: str = "", selector: Selector = EVERYTHING) -> list[BackendSpread]:
        """Which builds of each backend are out there, and who differs from most."""
        return await self.table.spread(family=family, selector=selector)

    async def view(self, node: NodeView) -> NodeInventory:
        seen_at, backends = await self.table.copy(node.id)
        return NodeInventory(node_id=node.id, node_name=node.name, seen_at=seen_at, backends=backends)

    async def refresh(self, node: NodeView) -> list[Installed]:
        """Ask the node itself and take over its list; raises when it does not answer."""
        if node.node_type is not NodeType.BACKEND:
            return []
        asked_at = self.clock()
        answer = await self.link.list_backends(node.id, within=ANSWER_S)
        if answer.error:
            raise NoAnswer(f"Node {node.name} could not list its backends: {answer.error}", node=node.name)
        await self.table.replace(node.id, answer.backends, asked_at=asked_at, boot_id=node.boot_id)
        return answer.backends

    async def refresh_stale(self) -> int:
        """Ask every node whose copy may be wrong; return how many answered."""
        stale = await self.table.stale(limit=AT_ONCE, skip=self._resting())
        answered = await asyncio.gather(*(self._refreshed(node) for node in stale))
        return sum(answered)

    async def _refreshed(self, node: NodeView) -> bool:
        try:
            await self.refresh(node)
        except NodesmithError as error:
            self._not_before[node.id] = time.monotonic() + PAUSE_S
            log.info("inventory not taken", node=node.name, error=str(error))
            return False
        return True

    def _resting(self) -> Sequence[str]:
        """Nodes that did not answer a moment ago; the rest of them is forgotten."""
        now = time.monotonic()
        for node_id in [node_id for node_id, until in self._not_before.items() if until <= now]:
            del self._not_before[node_id]
        return list(self._not_before)

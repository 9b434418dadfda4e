"""Hold and release: an operator stops everything that is not on a node yet, and lets it go again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from contracts.operation_http import HoldView
from services.ports import Holds, OperationRuns, Operations

WOKEN_AT_ONCE = 20


@dataclass(frozen=True)
class Holding:
    """The hold is one row, asked for before every dispatch: it holds on every replica at once."""

    holds: Holds
    operations: Operations
    runs: OperationRuns
    clock: Callable[[], datetime]

    async def hold(self, reason: str, *, actor: str) -> HoldView:
        """A second hold changes nothing: who came first, and why, stays on the board."""
        await self.holds.hold(reason=reason, by=actor, now=self.clock())
        return await self.standing()

    async def release(self, *, actor: str) -> HoldView:
        await self.holds.release(by=actor, now=self.clock())
        await self.wake()
        return await self.standing()

    async def standing(self) -> HoldView:
        return await self.holds.in_force() or HoldView(held=False)

    async def wake(self) -> None:
        """Let what waits look again; what is missed here looks by itself a little later."""
        if await self.holds.in_force() is not None:
            return
        gate = asyncio.Semaphore(WOKEN_AT_ONCE)

        async def one(workflow_id: str, node_id: str) -> None:
            async with gate:
                await self.runs.node_back(workflow_id, node_id)

        await asyncio.gather(*(one(row.workflow_id, row.node_id) for row in await self.operations.held()))

"""Hold and release: an operator stops all operations that were not dispatched yet, and later releases them."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from nodesmith.domain.hold import Hold
from nodesmith.services.ports import Holds, OperationRuns, Operations

WAKE_CONCURRENCY = 20


@dataclass(frozen=True)
class HoldService:
    """The hold is one row that is read before every dispatch, so it takes effect on every replica at once."""

    holds: Holds
    operations: Operations
    runs: OperationRuns
    clock: Callable[[], datetime]

    async def hold(self, reason: str, *, actor: str) -> Hold | None:
        """Set the hold; a second one changes nothing, and the first actor and reason remain."""
        await self.holds.hold(reason=reason, by=actor, now=self.clock())
        return await self.current()

    async def release(self, *, actor: str) -> Hold | None:
        await self.holds.release(by=actor, now=self.clock())
        await self.wake()
        return await self.current()

    async def current(self) -> Hold | None:
        return await self.holds.in_force()

    async def wake(self) -> None:
        """Wake the held operations; any that this misses check again by themselves a little later."""
        if await self.holds.in_force() is not None:
            return
        slots = asyncio.Semaphore(WAKE_CONCURRENCY)

        async def one(workflow_id: str, node_id: str) -> None:
            async with slots:
                await self.runs.node_back(workflow_id, node_id)

        await asyncio.gather(*(one(row.workflow_id, row.node_id) for row in await self.operations.held()))

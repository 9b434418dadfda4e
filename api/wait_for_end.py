"""Wait for the end of an operation or batch, for LocalAI's synchronous routes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nodesmith.api.dependencies import Dependencies
from nodesmith.domain.batch import ENDED_BATCHES, Batch
from nodesmith.domain.operation import ENDED, Operation

LOOK_EVERY_S = 0.1

T = TypeVar("T")


async def operation_end(deps: Dependencies, op_id: str) -> Operation | None:
    """Return the operation once it has ended; None if it takes longer than the time limit."""
    return await _poll(lambda: deps.operations.find(op_id), lambda row: row.state in ENDED, deps.patience_s)


async def batch_end(deps: Dependencies, batch_id: str) -> Batch | None:
    """Return the batch and its members, read in one snapshot, once it has ended."""
    ended = await _poll(lambda: deps.batches.find(batch_id), lambda row: row.state in ENDED_BATCHES, deps.patience_s)
    return await deps.batches.detail(batch_id) if ended else None


async def _poll(read: Callable[[], Awaitable[T | None]], is_over: Callable[[T], bool], within: float) -> T | None:
    """Poll the row: it is the one place that every replica can read."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while loop.time() < deadline:
        seen = await read()
        if seen is not None and is_over(seen):
            return seen
        await asyncio.sleep(LOOK_EVERY_S)
    return None

"""Routes that LocalAI's clients wait on: start the durable thing, then wait a while for its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from api.parts import Parts
from contracts.batches import ENDED_BATCHES, BatchDetail
from contracts.operation_http import OperationView
from domain.operation import ENDED

LOOK_EVERY_S = 0.1

T = TypeVar("T")


async def operation_end(parts: Parts, op_id: str) -> OperationView | None:
    """The operation once it has ended; None when it goes on for longer than anybody waits."""
    return await _first(lambda: parts.operations.find(op_id), lambda row: row.state in ENDED, parts.patience_s)


async def batch_end(parts: Parts, batch_id: str) -> BatchDetail | None:
    """The batch once it has ended, and its members of the same moment."""
    ended = await _first(lambda: parts.batches.find(batch_id), lambda row: row.state in ENDED_BATCHES, parts.patience_s)
    return await parts.batches.detail(batch_id) if ended else None


async def _first(look: Callable[[], Awaitable[T | None]], is_over: Callable[[T], bool], within: float) -> T | None:
    """The row is the one place that every replica sees, so it is looked at, by its key."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while loop.time() < deadline:
        seen = await look()
        if seen is not None and is_over(seen):
            return seen
        await asyncio.sleep(LOOK_EVERY_S)
    return None

"""Running things side by side until the first of them ends."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def first_of(*works: Awaitable[object]) -> None:
    """Until one ends; the others are cancelled, and a failure is ours."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None when `stop` came first."""
    working = asyncio.ensure_future(work)
    await first_of(stop.wait(), working)
    return working.result() if not working.cancelled() else None

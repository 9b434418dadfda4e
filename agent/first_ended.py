"""Run coroutines concurrently until the first of them ends."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_until_first(*coroutines: Awaitable[object]) -> None:
    """Wait for the first to end, cancel the others, and raise the failure of the one that ended."""
    tasks = [asyncio.ensure_future(work) for work in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`, or None when `stop` was set first."""
    working = asyncio.ensure_future(work)
    await run_until_first(stop.wait(), working)
    return working.result() if not working.cancelled() else None

"""Polling for conditions without an event: a file, another process, a thread."""

import asyncio
from collections.abc import Callable

from tests.deadlines import HANGS_S


async def until(condition: Callable[[], object], *, within: float = HANGS_S, pause: float = 0.0) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(pause)

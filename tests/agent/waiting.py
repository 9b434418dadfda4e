"""Waiting for what has no event of its own: a file, another process, a thread."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within: float = 10.0, pause: float = 0.0) -> None:
    """Let everything else go on until the condition holds."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(pause)

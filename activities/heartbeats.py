"""Heartbeats of an activity that runs for an hour."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity


@asynccontextmanager
async def heartbeating(*, every: timedelta) -> AsyncIterator[None]:
    """Heartbeat in the background, so that a slow tick does not look like a lost worker."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(every.total_seconds())

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()

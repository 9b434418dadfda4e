"""Blocking work off the event loop, in a way that cancelling never leaves it running behind one's back."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MOST = 32


class Threads:
    """Threads of the installer. The journal has its own, so that a tombstone never queues behind an unpack."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST, thread_name_prefix="installer")

    async def run(self, halt: threading.Event, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work`; when cancelled, set `halt` and wait until the thread has really ended."""
        running = asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            halt.set()
            await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # looked at: the cancellation is what counts
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

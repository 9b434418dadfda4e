"""Runs blocking work in threads; a cancelled caller waits until its thread has ended."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_MAX_THREADS = 32


async def run_to_end(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `work` in a thread; a cancelled caller waits for it, so that no write comes after its clean-up."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


class Threads:
    """Thread pool of the installer. The journal has its own, so that a tombstone never queues behind an unpack."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="installer")

    async def run(self, halt: threading.Event, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `work`; when cancelled, set `halt` and wait until the thread has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        running = self._pool.submit(work, *args, **kwargs)
        running.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
        try:
            await ended.wait()
        except asyncio.CancelledError:
            halt.set()
            if not running.cancel():  # it has already started
                await ended.wait()
            raise
        return running.result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

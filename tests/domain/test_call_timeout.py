"""Calls keep waiting for a busy server while it answers other calls."""

import asyncio
import time

import pytest

from nodesmith.domain.call_timeout import SharedTimeout


async def test_call_to_silent_server_times_out() -> None:
    patience = SharedTimeout(silence_s=0.02, longest_s=60)
    with pytest.raises(TimeoutError):
        async with patience.bounded():
            await asyncio.Event().wait()


async def test_any_answer_extends_all_pending_calls() -> None:
    patience, served = SharedTimeout(silence_s=0.2, longest_s=60), asyncio.Event()

    async def waits() -> str:
        async with patience.bounded():
            await served.wait()
        return "served"

    waiting = asyncio.create_task(waits())
    for _ in range(8):
        await asyncio.sleep(0.05)
        patience.answered()
    served.set()
    assert await waiting == "served"


async def test_call_to_busy_server_times_out_in_the_end() -> None:
    patience = SharedTimeout(silence_s=0.05, longest_s=0.1)

    async def waits() -> None:
        async with patience.bounded():
            await asyncio.Event().wait()

    async def serves_others() -> None:
        while True:
            await asyncio.sleep(0.01)
            patience.answered()

    serving = asyncio.create_task(serves_others())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waits(), 10)
    serving.cancel()


async def test_suspension_of_this_process_is_not_server_silence() -> None:
    """The machine is busy: our own process stood still, and the answer has come meanwhile."""
    patience, answered = SharedTimeout(silence_s=0.1, longest_s=0.2), asyncio.Event()

    async def waits() -> str:
        async with patience.bounded():
            await answered.wait()
        return "served"

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - nothing of this process runs
    asyncio.get_running_loop().call_later(0.02, answered.set)
    assert await waiting == "served"

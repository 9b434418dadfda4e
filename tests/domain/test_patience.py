"""Busy is not away: whoever waits for a server waits on while it answers others."""

import asyncio
import time

import pytest

from domain.patience import Patience


async def test_a_silent_server_is_given_up_after_the_silence() -> None:
    patience = Patience(silence_s=0.02, longest_s=60)
    with pytest.raises(TimeoutError):
        async with patience.bounded():
            await asyncio.Event().wait()


async def test_an_answer_to_somebody_is_new_time_for_everybody() -> None:
    patience, served = Patience(silence_s=0.2, longest_s=60), asyncio.Event()

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


async def test_even_a_busy_server_is_given_up_in_the_end() -> None:
    patience = Patience(silence_s=0.05, longest_s=0.1)

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


async def test_time_in_which_we_did_not_listen_ourselves_is_not_the_servers_silence() -> None:
    """The machine is busy: our own process stood still, and the answer has come meanwhile."""
    patience, answered = Patience(silence_s=0.1, longest_s=0.2), asyncio.Event()

    async def waits() -> str:
        async with patience.bounded():
            await answered.wait()
        return "served"

    waiting = asyncio.create_task(waits())
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - nothing of this process runs
    asyncio.get_running_loop().call_later(0.02, answered.set)
    assert await waiting == "served"

"""Work in threads never continues after its caller was cancelled."""

import asyncio
import threading

import pytest

from nodesmith.agent.threads import Threads


@pytest.fixture
def threads():
    threads = Threads()
    yield threads
    threads.close()


async def test_a_cancel_waits_until_the_thread_has_really_ended(threads):
    begun, ended, halt = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        halt.wait(10)
        ended.set()

    running = asyncio.create_task(threads.run(halt, work))
    await asyncio.to_thread(begun.wait, 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


async def test_cancelled_work_that_has_not_begun_never_begins(threads):
    """All threads are busy; a cancelled job does not wait for one."""
    release = threading.Event()
    begun: list[int] = []
    busy = [asyncio.create_task(threads.run(threading.Event(), release.wait, 10)) for _ in range(32)]
    waiting = asyncio.create_task(threads.run(threading.Event(), begun.append, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 5)
    release.set()
    await asyncio.gather(*busy)
    assert begun == []


async def test_results_and_errors_come_through(threads):
    assert await threads.run(threading.Event(), lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(threading.Event(), lambda: 1 / 0)

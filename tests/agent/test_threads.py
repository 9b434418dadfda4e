"""Work in threads never continues after its caller was cancelled."""

import asyncio
import threading
from pathlib import Path

import pytest

from nodesmith.agent.threads import Threads, run_to_end
from tests.deadlines import HANGS_S


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


async def test_cancelled_caller_waits_for_a_write_that_has_begun(tmp_path: Path) -> None:
    """A record of a process that is written after the clean-up would start the process again later."""
    begun, may_write, file = threading.Event(), threading.Event(), tmp_path / "record"

    def write() -> None:
        begun.set()
        may_write.wait(HANGS_S)
        file.write_text("running")

    async def start() -> None:
        try:
            await run_to_end(write)
        except asyncio.CancelledError:
            file.unlink()  # the clean-up: there must be something to remove
            raise

    starting = asyncio.create_task(start())
    await asyncio.to_thread(begun.wait, HANGS_S)
    starting.cancel()
    await asyncio.sleep(0)
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not file.exists()

"""The end of a process, in one place."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import NoReturn

Main = Callable[[asyncio.Event], Coroutine[None, None, int]]


def run(main: Main, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> NoReturn:
    """Run `main(stop)` until it returns; SIGTERM and SIGINT set `stop`. Never returns.

    A process that used temporalio may abort while the interpreter shuts down, so we leave
    by `os._exit` once everything of ours is closed and flushed: the exit code is the one we chose.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        code = runner.run(_with_signals(main))
    leave(code)


def leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _with_signals(main: Main) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await main(stop)

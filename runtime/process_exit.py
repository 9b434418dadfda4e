"""Runs the main coroutine of a process, and exits with its code."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import NoReturn

Main = Callable[[asyncio.Event], Coroutine[None, None, int]]


def run(main: Main, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> NoReturn:
    """Run `main(stop)` until it returns; SIGTERM and SIGINT set `stop`. Never returns.

    A process that used temporalio may abort during interpreter shutdown, so the process ends with `os._exit` once
    everything is closed and flushed; that keeps the exit code.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        code = runner.run(_with_signals(main))
    exit_now(code)


def exit_now(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _with_signals(main: Main) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await main(stop)

"""A benchmark as a process: it ends with its figures, or with the reason why it could not go on."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx2


class BenchmarkFailed(Exception):
    """The benchmark cannot go on."""


def run(main: Coroutine[Any, Any, int | None]) -> None:
    """Run it to its end. However it ends, what it has started is stopped."""
    try:
        code = asyncio.run(_until_terminated(main))
    except (BenchmarkFailed, httpx2.HTTPError, TimeoutError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit("terminated")
    sys.exit(code or 0)


async def _until_terminated(main: Coroutine[Any, Any, int | None]) -> int | None:
    """SIGTERM unwinds as Ctrl-C does: Python would end without stopping anything."""
    running = asyncio.ensure_future(main)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


@contextlib.contextmanager
def first_of_group() -> Iterator[None]:
    """Of a group of errors the first: the others follow from it."""
    try:
        yield
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None

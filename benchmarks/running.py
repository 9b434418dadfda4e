"""Runs a benchmark as a process that ends with its figures, or with the reason for its failure."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx2


class BenchmarkFailed(Exception):
    """The benchmark cannot continue."""


def run(main: Coroutine[Any, Any, int | None]) -> None:
    """Run a benchmark to its end, and stop the processes that it started however it ends."""
    try:
        code = asyncio.run(_until_terminated(main))
    except (BenchmarkFailed, httpx2.HTTPError, TimeoutError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit("terminated")
    sys.exit(code or 0)


async def _until_terminated(main: Coroutine[Any, Any, int | None]) -> int | None:
    """Cancel the benchmark on SIGTERM, which would otherwise end Python without any clean-up."""
    running = asyncio.ensure_future(main)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


@contextlib.contextmanager
def first_of_group() -> Iterator[None]:
    """Replace an exception group with its first exception, which caused the others."""
    try:
        yield
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None

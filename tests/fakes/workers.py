"""Temporal workers of tests. They end even if the SDK does not."""

import asyncio
from typing import Any

import structlog
from temporalio.worker import Worker

log = structlog.stdlib.get_logger(__name__)

STOPS_S = 60.0
_hanging: set["asyncio.Future[None]"] = set()


class EndingWorker(Worker):
    """A worker that is left behind if its shutdown hangs.

    Beside load, the SDK's core (temporalio 1.35) now and then waits forever after all activities have ended: the
    activity of a terminated run that is completed while the worker shuts down is "not found on completion". A worker
    process is killed then, which is always safe; the worker of a test has a task queue of its own.
    """

    async def __aexit__(self, *error: Any) -> None:
        leaving = asyncio.ensure_future(super().__aexit__(*error))
        await asyncio.wait([leaving], timeout=STOPS_S)
        if leaving.done():
            leaving.result()
        else:
            _hanging.add(leaving)
            log.warning("worker.left_behind", queue=self.task_queue)

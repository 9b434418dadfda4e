"""One operation while it runs on this node."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.failures import OperationFailed, Stopped, readable
from agent.plan import Plan
from agent.progress import Gauge
from contracts.messages import Command, Installed, Outcome, Result
from domain.operation import Kind, Reason


@dataclass(frozen=True)
class Done:
    """A success, and what it changed."""

    changed: bool
    before: Installed | None = None
    after: Installed | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)


class Job:
    """Carries the command, the gauge, and the one question that a cancel and a swap must agree on.

    Until `commit` the job can be stopped; after it, it runs to its end. Both are decided on the event loop.
    """

    def __init__(self, command: Command, gauge: Gauge, plan: Plan | None = None) -> None:
        self.command = command
        self.plan = plan
        """what is on the disk of it: of an earlier try at first"""
        self.after_end: Callable[[], Awaitable[None]] | None = None
        """what is left to do once the end is written down"""
        self.gauge = gauge
        self.halt = threading.Event()
        """threads look at it: set means that nothing more may be written"""
        self.bytes_fetched = 0
        self.bytes_reused = 0
        self.stopped_at = 0.0
        self.verdict: Result | None = None
        """cancelled or interrupted, once somebody has claimed it"""
        self._committed = command.kind is Kind.REMOVE
        self._work: asyncio.Task[Done] | None = None
        self._begun = asyncio.Event()
        self._buried = asyncio.Event()
        self._ended = asyncio.Event()

    async def work(self, performer: "Performer") -> None:
        """Let it be done, to whatever end; `result` tells which."""
        self._work = asyncio.create_task(performer.perform(self), name=f"op-{self.command.op_id}")
        if self.verdict is not None:
            self.stop()
        await asyncio.wait([self._work])
        self._committed = True
        self.stopped_at = time.monotonic()

    def result(self) -> Done:
        """What came of it; raises what it raised."""
        if self._work is None:
            raise Stopped
        return self._work.result()

    def commit(self) -> None:
        """The last moment to stop has passed; raises `Stopped` when somebody was quicker."""
        if self.verdict is not None:
            raise Stopped
        self._committed = True

    def claim(self, verdict: Result) -> bool:
        """Forbid the commit; False when it is too late for that, or somebody else has claimed it."""
        if self._committed or self.verdict is not None:
            return False
        self.verdict = verdict
        return True

    def mark_buried(self) -> None:
        """Its tombstone is written, or could not be: then the verdict has changed."""
        self._buried.set()

    async def judged(self) -> None:
        """Wait until it is certain whether it was cancelled: only a tombstone on the disk makes it so."""
        if self.verdict is Result.CANCELLED:
            await self._buried.wait()

    def stop(self) -> None:
        """Let the claimed job end now."""
        self.halt.set()
        if self._work is not None:
            self._work.cancel()

    def mark_begun(self) -> None:
        self._begun.set()

    async def begun(self) -> None:
        """Wait until it is written down that it runs."""
        await self._begun.wait()

    def mark_ended(self) -> None:
        self._ended.set()

    async def ended(self) -> None:
        """Wait until it is over and written down."""
        await self._ended.wait()


class Performer(Protocol):
    """Changes the node; the desk knows only this much of it."""

    async def perform(self, job: Job) -> Done: ...
    async def discard(self, command: Command) -> None: ...
    async def abandon(self, op_id: str) -> None:
        """Undo what an interrupted plan has left, for good."""
        ...


def success(job: Job, done: Done) -> Outcome:
    return _outcome(
        job,
        result=Result.SUCCEEDED,
        changed=done.changed,
        before=done.before,
        after=done.after,
        addresses=done.addresses,
        stopped_process_keys=done.stopped,
    )


def failure(job: Job, why: OperationFailed) -> Outcome:
    error = readable(str(why))
    return _outcome(job, result=Result.FAILED, reason=why.reason, error=error, retry_after_s=why.retry_after_s)


def stopped(job: Job) -> Outcome:
    verdict = job.verdict or Result.INTERRUPTED
    reason = Reason.REQUESTED if verdict is Result.CANCELLED else Reason.INTERRUPTED
    return _outcome(job, result=verdict, reason=reason)


def _outcome(job: Job, **how: Any) -> Outcome:
    return Outcome(
        op_id=job.command.op_id,
        backend=job.command.backend,
        family=job.command.family,
        decision=job.gauge.decision,
        bytes_fetched=job.bytes_fetched,
        bytes_reused=job.bytes_reused,
        **how,
    )

"""A running operation on this node."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from nodesmith.agent.operations.change_plan import ChangePlan
from nodesmith.agent.operations.failures import OperationFailed, Stopped, readable
from nodesmith.agent.operations.progress import Gauge
from nodesmith.contracts.nats.messages import Command, Installed, Outcome, Result
from nodesmith.domain.operation import Reason


@dataclass(frozen=True)
class Done:
    """Result of a successful operation."""

    changed: bool
    before: Installed | None = None
    after: Installed | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    report: int = 0
    """number of the last report about replicas before this end"""


class Job:
    """Holds the command, the progress gauge, and the decision between cancel and commit.

    Until `commit` the job can be stopped; after it, it runs to completion. Both are decided on the event loop.
    """

    def __init__(self, command: Command, gauge: Gauge, plan: ChangePlan | None = None) -> None:
        self.command = command
        self.plan = plan
        """the journaled plan, initially that of an earlier attempt"""
        self.after_end: Callable[[], Awaitable[None]] | None = None
        """clean-up to run once the outcome is journaled"""
        self.gauge = gauge
        self.halt = threading.Event()
        """checked by threads: once set, nothing more may be written"""
        self.bytes_fetched = 0
        self.bytes_reused = 0
        self.stopped_at = 0.0
        self.verdict: Result | None = None
        """cancelled or interrupted, once claimed"""
        self._committed = not command.kind.rules.cancellable_on_node
        self._work: asyncio.Task[Done] | None = None
        self._begun = asyncio.Event()
        self._tombstone_settled = asyncio.Event()
        self._ended = asyncio.Event()

    async def work(self, performer: "Performer") -> None:
        """Run to completion, failure or stop; `result` returns or raises the outcome."""
        self._work = asyncio.create_task(performer.perform(self), name=f"op-{self.command.op_id}")
        if self.verdict is not None:
            self.stop()
        await asyncio.wait([self._work])
        self._committed = True
        self.stopped_at = time.monotonic()

    def result(self) -> Done:
        """Return the result, or raise the job's exception."""
        if self._work is None:
            raise Stopped
        return self._work.result()

    def commit(self) -> None:
        """Pass the point of no return; raises `Stopped` if the job was claimed first."""
        if self.verdict is not None:
            raise Stopped
        self._committed = True

    def claim(self, verdict: Result) -> bool:
        """Prevent the commit; False when the job has committed or was claimed already."""
        if self._committed or self.verdict is not None:
            return False
        self.verdict = verdict
        return True

    def mark_tombstone_settled(self) -> None:
        """Signal that the tombstone is written, or failed and the verdict was changed."""
        self._tombstone_settled.set()

    async def wait_for_verdict(self) -> None:
        """Wait until the verdict is final: only a tombstone on disk makes it a cancel."""
        if self.verdict is Result.CANCELLED:
            await self._tombstone_settled.wait()

    def stop(self) -> None:
        """End the claimed job now."""
        self.halt.set()
        if self._work is not None:
            self._work.cancel()

    def mark_begun(self) -> None:
        self._begun.set()

    async def wait_begun(self) -> None:
        """Wait until the start is journaled."""
        await self._begun.wait()

    def mark_ended(self) -> None:
        self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until the end is journaled."""
        await self._ended.wait()


class Performer(Protocol):
    """Interface of what changes the node, as seen by `NodeOperations`."""

    async def perform(self, job: Job) -> Done: ...
    async def discard(self, command: Command) -> None: ...
    async def abandon(self, op_id: str) -> None:
        """Undo an interrupted plan permanently."""
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
        report=done.report,
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

"""Accepts commands: starts operations, answers repeated commands from the journal, and cancels."""

import asyncio
import time
from typing import Any, Protocol

import structlog

from nodesmith.agent.operations.job import Job, Performer
from nodesmith.agent.operations.journal import Change, Journal, JournalEntry, JournalStatus
from nodesmith.agent.operations.journal_entries import begun_entry, ended_entry, outcome_of, progress_fields, tombstone
from nodesmith.agent.operations.progress import Gauge
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelAnswer,
    CancelCommand,
    CancelMode,
    CancelReply,
    Command,
    CommandReply,
    NodeOperationStatus,
    OpQuestion,
    OpReply,
    Outcome,
    Progress,
    Result,
)
from nodesmith.domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

_FINAL_REPORTS_S = 2.0
_CANCELLED = "This operation was cancelled and cannot start again."


class Reporter(Protocol):
    async def progress(self, progress: Progress) -> None: ...
    async def outcome(self, outcome: Outcome) -> None: ...


def decide(known: JournalEntry | None, decision: int, holder: str | None) -> Answer:
    """Decide how to answer a command. `holder`: another operation that runs on the same backend."""
    if known is None or _may_begin_again(known, decision):
        return Answer.BUSY if holder else Answer.ACCEPTED
    remembered = {JournalStatus.RUNNING: Answer.ATTACHED, JournalStatus.ENDED: Answer.ENDED}
    return remembered.get(known.standing, Answer.REFUSED)


def _may_begin_again(known: JournalEntry, decision: int) -> bool:
    """An interrupted attempt may restart with the same decision; a failed one needs a newer decision."""
    if known.standing is JournalStatus.INTERRUPTED:
        return True
    failed = known.outcome is not None and known.outcome.result is Result.FAILED
    return known.standing is JournalStatus.ENDED and failed and decision > known.decision


class NodeOperations:
    """Runs one operation at a time per backend or replica, different ones concurrently; replies immediately."""

    def __init__(
        self,
        journal: Journal,
        performer: Performer,
        reporter: Reporter,
        *,
        progress_every: float,
        journal_every: float = 0.0,
    ) -> None:
        """`journal_every`: seconds between journal writes of progress; 0 disables them."""
        self._journal = journal
        self._performer = performer
        self._reporter = reporter
        self._progress_every = progress_every
        self._journal_every = journal_every
        self._jobs: dict[str, Job] = {}
        self._holders: dict[str, str] = {}
        self._newest: dict[str, int] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def open_ops(self) -> list[str]:
        return list(self._jobs)

    def knows(self, op_id: str) -> bool:
        return self._known(op_id) is not None

    def would_begin(self, op_id: str, decision: int) -> bool:
        known = self._known(op_id)
        return known is None or _may_begin_again(known, decision)

    def newest_iat(self, lock: str) -> int:
        """Return the issue time of the newest order begun under that lock, journaled or not yet."""
        return max(self._journal.newest_iat(lock), self._newest.get(lock, 0))

    async def command(self, command: Command) -> CommandReply | None:
        """Begin, attach, repeat the outcome or refuse; returns None while the agent shuts down."""
        if self._closing:
            return None
        if not command.op_id or not command.lock:
            return _refuse(command, "A command needs op_id and family.")
        known = self._known(command.op_id)
        holder = self._holders.get(command.lock)
        answer = decide(known, command.decision, holder if holder != command.op_id else None)
        log.info("command", op_id=command.op_id, decision=command.decision, answer=answer)
        match answer:
            case Answer.ACCEPTED if not await self._begin(command, known):
                return _refuse(command, _CANCELLED)
            case Answer.ATTACHED:
                await self._attach(command)
            case Answer.REFUSED:
                return _refuse(command, _CANCELLED)
        return CommandReply(
            op_id=command.op_id,
            answer=answer,
            success=answer in (Answer.ACCEPTED, Answer.ATTACHED),
            busy_op_id=(holder or "") if answer is Answer.BUSY else "",
            outcome=known.outcome if known and answer is Answer.ENDED else None,
        )

    def _known(self, op_id: str) -> JournalEntry | None:
        """Return the journal entry; a job counts as running before that is on disk, so it cannot begin twice."""
        known, job = self._journal.get(op_id), self._jobs.get(op_id)
        if job is None or (known is not None and known.standing in (JournalStatus.RUNNING, JournalStatus.CANCELLED)):
            return known
        return begun_entry(job)

    async def ask(self, question: OpQuestion) -> OpReply:
        """Return the current status of an operation."""
        known = self._known(question.op_id)
        if known is None:
            return OpReply(op_id=question.op_id)
        job = self._jobs.get(question.op_id)
        interrupted = known.standing is JournalStatus.INTERRUPTED
        standing = NodeOperationStatus.INTERRUPTED if interrupted else NodeOperationStatus.ENDED
        return OpReply(
            op_id=known.op_id,
            standing=NodeOperationStatus.RUNNING if job else standing,
            decision=known.decision,
            progress=job.gauge.now() if job else known.progress() if interrupted else None,
            outcome=None if job else known.outcome,
        )

    async def cancel(self, command: CancelCommand) -> CancelReply:
        """Write the tombstone, stop the job, then reply; the operation can never change the node again."""
        arrived = time.monotonic()
        job = self._jobs.get(command.op_id)
        try:
            if job is not None and job.claim(Result.CANCELLED):
                return await self._stop(job, command, arrived)
            if job is not None:
                await job.wait_ended()
            return await self._write_tombstone(command)
        except OSError as error:
            log.exception("cancel.not_written", op_id=command.op_id)
            return CancelReply(op_id=command.op_id, error=f"The tombstone could not be written: {error}")

    async def close(self) -> None:
        """Interrupt all jobs, journal and report them as interrupted."""
        self._closing = True
        jobs = list(self._jobs.values())
        for job in jobs:
            if job.claim(Result.INTERRUPTED):
                job.stop()
        for job in jobs:
            await job.wait_ended()
        if self._background_tasks:
            await asyncio.wait(self._background_tasks, timeout=_FINAL_REPORTS_S)
        for task in list(self._background_tasks):
            task.cancel()

    def report(self, outcome: Outcome) -> None:
        """Report an outcome in the background, so that callers do not wait for the connection."""
        self._in_background(asyncio.create_task(self._reporter.outcome(outcome)))

    # beginning and attaching ----------------------------------------------------------------------------------

    async def _begin(self, command: Command, known: JournalEntry | None) -> bool:
        """Reserve the backend before the first await, so that a concurrent command finds it busy.

        Returns False when a tombstone was queued for the disk before this command.
        """
        if known is not None and known.decision > command.decision:
            command = command.model_copy(update={"decision": known.decision})
        plan = known.plan if known is not None else None
        job = Job(command, Gauge(command, self._reporter.progress, every=self._progress_every), plan)
        self._jobs[command.op_id] = job
        self._holders[command.lock] = command.op_id
        self._newest[command.lock] = max(self.newest_iat(command.lock), command.iat)
        entry = JournalEntry(
            op_id=command.op_id, standing=JournalStatus.RUNNING, decision=command.decision, command=command, plan=plan
        )
        await self._change(command.op_id, lambda now: entry if _may_run(now) else None)
        job.mark_begun()
        written = self._journal.get(command.op_id)
        if job.verdict is None and written is not None and written.standing is JournalStatus.CANCELLED:
            self._release(job)
            return False
        self._in_background(asyncio.create_task(self._run(job)))
        return True

    async def _attach(self, command: Command) -> None:
        """Continue the same job under the newer decision; returns once the job is journaled."""
        if (job := self._jobs.get(command.op_id)) is None:
            return
        await job.wait_begun()
        if command.decision <= job.gauge.decision:
            return
        job.gauge.decision = command.decision
        await self._change(command.op_id, lambda known: _with_changes(known, {"decision": command.decision}))

    # running --------------------------------------------------------------------------------------------------

    async def _run(self, job: Job) -> None:
        noting = asyncio.create_task(self._journal_progress(job))
        await job.work(self._performer)
        noting.cancel()
        await job.gauge.close()
        await job.wait_for_verdict()
        outcome = outcome_of(job)
        await self._end(job, ended_entry(job, outcome))
        self._release(job)
        log.info("ended", op_id=outcome.op_id, result=outcome.result, reason=outcome.reason, error=outcome.error)
        self.report(outcome)

    def _release(self, job: Job) -> None:
        del self._jobs[job.command.op_id]
        del self._holders[job.command.lock]
        job.mark_ended()

    async def _end(self, job: Job, entry: JournalEntry) -> None:
        """Journal the outcome, in memory only if the disk is full, then clean up after the plan."""
        try:
            await self._journal.put(entry)
        except OSError:
            log.exception("journal.not_written", op_id=entry.op_id)
            if entry.standing is not JournalStatus.CANCELLED:  # the cancel has already written the tombstone
                self._journal.keep_in_memory(entry)
        if job.after_end is not None and entry.standing is JournalStatus.ENDED:
            try:
                await job.after_end()
            except OSError:
                log.exception("clean_up.failed", op_id=entry.op_id)

    async def _journal_progress(self, job: Job) -> None:
        """Journal the progress for status queries after a crash; rarely, because each write waits for the disk."""
        while self._journal_every:
            await asyncio.sleep(self._journal_every)
            await self._change(job.command.op_id, lambda known: _with_changes(known, progress_fields(job)))

    async def _change(self, op_id: str, change: Change) -> None:
        """Write an entry that recovery does not need, so a full disk does not stop the operation."""
        try:
            await self._journal.change(op_id, change)
        except OSError:
            log.exception("journal.not_written", op_id=op_id)

    # stopping -------------------------------------------------------------------------------------------------

    async def _stop(self, job: Job, command: CancelCommand, arrived: float) -> CancelReply:
        try:
            await self._journal.change(command.op_id, lambda known: tombstone(known or begun_entry(job), command.op_id))
        except OSError:
            job.verdict = Result.INTERRUPTED
            raise
        finally:
            job.mark_tombstone_settled()
            job.stop()
            await job.wait_ended()
        await self._performer.abandon(command.op_id)
        if command.mode is not CancelMode.KEEP:
            await self._performer.discard(job.command)
        return CancelReply(
            op_id=command.op_id,
            answer=CancelAnswer.STOPPED,
            stopped_after_s=round(job.stopped_at - arrived, 3),
            bytes_done=job.gauge.bytes_done,
        )

    async def _write_tombstone(self, command: CancelCommand) -> CancelReply:
        """Cancel an operation that does not run: a success stays one, everything else gets a tombstone."""
        known = self._journal.get(command.op_id)
        if known is not None and known.outcome is not None and known.outcome.result is Result.SUCCEEDED:
            return CancelReply(op_id=command.op_id, answer=CancelAnswer.TOO_LATE, outcome=known.outcome)
        if known is None or known.standing is not JournalStatus.CANCELLED:
            await self._journal.change(command.op_id, lambda now: tombstone(now, command.op_id))
        await self._performer.abandon(command.op_id)
        if known is not None and command.mode is not CancelMode.KEEP:
            await self._performer.discard(known.command)
        bytes_done = known.bytes_done if known is not None else 0
        return CancelReply(op_id=command.op_id, answer=CancelAnswer.STOPPED, bytes_done=bytes_done)

    def _in_background(self, task: asyncio.Task[None]) -> None:
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)


def _refuse(command: Command, why: str) -> CommandReply:
    return CommandReply(op_id=command.op_id, answer=Answer.REFUSED, reason=Reason.REFUSED_BY_NODE, error=why)


def _may_run(known: JournalEntry | None) -> bool:
    """A tombstone is final and is never overwritten."""
    return known is None or known.standing is not JournalStatus.CANCELLED


def _with_changes(known: JournalEntry | None, changes: dict[str, Any]) -> JournalEntry | None:
    if known is None or known.standing is not JournalStatus.RUNNING:
        return None
    is_changed = any(getattr(known, name) != value for name, value in changes.items())
    return known.model_copy(update=changes) if is_changed else None

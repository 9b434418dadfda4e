"""The desk: which command becomes work, which is answered from memory, and how work is stopped."""

import asyncio
import time
from typing import Any, Protocol

import structlog

from agent.entries import begun_entry, ended_entry, outcome_of, reached, tombstone
from agent.job import Job, Performer
from agent.journal import Change, Entry, Journal, Standing
from agent.progress import Gauge
from contracts.messages import (
    Answer,
    CancelAnswer,
    CancelCommand,
    CancelMode,
    CancelReply,
    Command,
    CommandReply,
    OpQuestion,
    OpReply,
    OpStanding,
    Outcome,
    Progress,
    Result,
)
from domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

_LAST_WORDS_S = 2.0
_CANCELLED = "This operation was cancelled: it never begins again."


class Reporter(Protocol):
    async def progress(self, progress: Progress) -> None: ...
    async def outcome(self, outcome: Outcome) -> None: ...


def decide(known: Entry | None, decision: int, holder: str | None) -> Answer:
    """What a command means to this node. `holder`: another operation that runs on the same backend."""
    if known is None or _may_begin_again(known, decision):
        return Answer.BUSY if holder else Answer.ACCEPTED
    remembered = {Standing.RUNNING: Answer.ATTACHED, Standing.ENDED: Answer.ENDED}
    return remembered.get(known.standing, Answer.REFUSED)


def _may_begin_again(known: Entry, decision: int) -> bool:
    """An interrupted try is simply sent again; a failed one only by a newer decision to try once more."""
    if known.standing is Standing.INTERRUPTED:
        return True
    failed = known.outcome is not None and known.outcome.result is Result.FAILED
    return known.standing is Standing.ENDED and failed and decision > known.decision


class Operations:
    """One operation at a time on each backend, different backends side by side; answers are given at once."""

    def __init__(
        self,
        journal: Journal,
        performer: Performer,
        reporter: Reporter,
        *,
        progress_every: float,
        journal_every: float = 0.0,
    ) -> None:
        """`journal_every`: how often progress is written down; 0 is never."""
        self._journal = journal
        self._performer = performer
        self._reporter = reporter
        self._progress_every = progress_every
        self._journal_every = journal_every
        self._jobs: dict[str, Job] = {}
        self._holders: dict[str, str] = {}
        self._behind: set[asyncio.Task[None]] = set()
        self._closing = False

    def open_ops(self) -> list[str]:
        return list(self._jobs)

    async def command(self, command: Command) -> CommandReply | None:
        """Begin, attach, repeat or refuse; no answer from an agent that leaves."""
        if self._closing:
            return None
        if not command.op_id or not command.family:
            return _refuse(command, "A command needs op_id and family.")
        known = self._known(command.op_id)
        holder = self._holders.get(command.family)
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

    def _known(self, op_id: str) -> Entry | None:
        """A job that has begun counts as running before that is on the disk: a second command must not begin it too."""
        known, job = self._journal.get(op_id), self._jobs.get(op_id)
        if job is None or (known is not None and known.standing in (Standing.RUNNING, Standing.CANCELLED)):
            return known
        return begun_entry(job)

    async def ask(self, question: OpQuestion) -> OpReply:
        """What is known of an operation, here and now."""
        known = self._known(question.op_id)
        if known is None:
            return OpReply(op_id=question.op_id)
        job = self._jobs.get(question.op_id)
        interrupted = known.standing is Standing.INTERRUPTED
        standing = OpStanding.INTERRUPTED if interrupted else OpStanding.ENDED
        return OpReply(
            op_id=known.op_id,
            standing=OpStanding.RUNNING if job else standing,
            decision=known.decision,
            progress=job.gauge.now() if job else known.progress() if interrupted else None,
            outcome=None if job else known.outcome,
        )

    async def cancel(self, command: CancelCommand) -> CancelReply:
        """Tombstone first, then stop, then say so; after that this operation never changes the node."""
        arrived = time.monotonic()
        job = self._jobs.get(command.op_id)
        try:
            if job is not None and job.claim(Result.CANCELLED):
                return await self._stop(job, command, arrived)
            if job is not None:
                await job.ended()
            return await self._bury(command)
        except OSError as error:
            log.exception("cancel.not_written", op_id=command.op_id)
            return CancelReply(op_id=command.op_id, error=f"The tombstone could not be written: {error}")

    async def close(self) -> None:
        """Interrupt what runs, journal it as such, and say so."""
        self._closing = True
        jobs = list(self._jobs.values())
        for job in jobs:
            if job.claim(Result.INTERRUPTED):
                job.stop()
        for job in jobs:
            await job.ended()
        if self._behind:
            await asyncio.wait(self._behind, timeout=_LAST_WORDS_S)
        for task in list(self._behind):
            task.cancel()

    def say(self, outcome: Outcome) -> None:
        """Report an outcome without making anybody wait for the link."""
        self._in_background(asyncio.create_task(self._reporter.outcome(outcome)))

    # beginning and attaching ----------------------------------------------------------------------------------

    async def _begin(self, command: Command, known: Entry | None) -> bool:
        """Reserve the backend before the first wait, so that a second command finds it taken.

        False when a tombstone was on its way to the disk before this command.
        """
        if known is not None and known.decision > command.decision:
            command = command.model_copy(update={"decision": known.decision})
        plan = known.plan if known is not None else None
        job = Job(command, Gauge(command, self._reporter.progress, every=self._progress_every), plan)
        self._jobs[command.op_id] = job
        self._holders[command.family] = command.op_id
        entry = Entry(
            op_id=command.op_id, standing=Standing.RUNNING, decision=command.decision, command=command, plan=plan
        )
        await self._change(command.op_id, lambda now: entry if _may_run(now) else None)
        job.mark_begun()
        written = self._journal.get(command.op_id)
        if job.verdict is None and written is not None and written.standing is Standing.CANCELLED:
            self._release(job)
            return False
        self._in_background(asyncio.create_task(self._run(job)))
        return True

    async def _attach(self, command: Command) -> None:
        """Go on with the same work, under the newer decision; answered once that work is written down."""
        if (job := self._jobs.get(command.op_id)) is None:
            return
        await job.begun()
        if command.decision <= job.gauge.decision:
            return
        job.gauge.decision = command.decision
        await self._change(command.op_id, lambda known: _with_news(known, {"decision": command.decision}))

    # the work -------------------------------------------------------------------------------------------------

    async def _run(self, job: Job) -> None:
        noting = asyncio.create_task(self._note_now_and_then(job))
        await job.work(self._performer)
        noting.cancel()
        await job.gauge.close()
        await job.judged()
        outcome = outcome_of(job)
        await self._end(job, ended_entry(job, outcome))
        self._release(job)
        log.info("ended", op_id=outcome.op_id, result=outcome.result, reason=outcome.reason, error=outcome.error)
        self.say(outcome)

    def _release(self, job: Job) -> None:
        del self._jobs[job.command.op_id]
        del self._holders[job.command.family]
        job.mark_ended()

    async def _end(self, job: Job, entry: Entry) -> None:
        """A disk that takes no more must not keep an end from those who ask; then what the plan left is cleaned up."""
        try:
            await self._journal.put(entry)
        except OSError:
            log.exception("journal.not_written", op_id=entry.op_id)
            if entry.standing is not Standing.CANCELLED:  # the tombstone is on the disk since the cancel
                self._journal.remember(entry)
        if job.after_end is not None and entry.standing is Standing.ENDED:
            try:
                await job.after_end()
            except OSError:
                log.exception("clean_up.failed", op_id=entry.op_id)

    async def _note_now_and_then(self, job: Job) -> None:
        """How far it is, for whoever asks after a crash; seldom, because each note waits for the disk."""
        while self._journal_every:
            await asyncio.sleep(self._journal_every)
            await self._change(job.command.op_id, lambda known: _with_news(known, reached(job)))

    async def _change(self, op_id: str, change: Change) -> None:
        """What is not needed for going on after a crash: a full disk does not keep the work from being done."""
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
            job.mark_buried()
            job.stop()
            await job.ended()
        await self._performer.abandon(command.op_id)
        if command.mode is not CancelMode.KEEP:
            await self._performer.discard(job.command)
        return CancelReply(
            op_id=command.op_id,
            answer=CancelAnswer.STOPPED,
            stopped_after_s=round(job.stopped_at - arrived, 3),
            bytes_done=job.gauge.bytes_done,
        )

    async def _bury(self, command: CancelCommand) -> CancelReply:
        """Nothing runs: a success stays one, everything else may never begin again."""
        known = self._journal.get(command.op_id)
        if known is not None and known.outcome is not None and known.outcome.result is Result.SUCCEEDED:
            return CancelReply(op_id=command.op_id, answer=CancelAnswer.TOO_LATE, outcome=known.outcome)
        if known is None or known.standing is not Standing.CANCELLED:
            await self._journal.change(command.op_id, lambda now: tombstone(now, command.op_id))
        await self._performer.abandon(command.op_id)
        if known is not None and command.mode is not CancelMode.KEEP:
            await self._performer.discard(known.command)
        bytes_done = known.bytes_done if known is not None else 0
        return CancelReply(op_id=command.op_id, answer=CancelAnswer.STOPPED, bytes_done=bytes_done)

    def _in_background(self, task: asyncio.Task[None]) -> None:
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)


def _refuse(command: Command, why: str) -> CommandReply:
    return CommandReply(op_id=command.op_id, answer=Answer.REFUSED, reason=Reason.REFUSED_BY_NODE, error=why)


def _may_run(known: Entry | None) -> bool:
    """A tombstone has the last word: nothing is written over it."""
    return known is None or known.standing is not Standing.CANCELLED


def _with_news(known: Entry | None, news: dict[str, Any]) -> Entry | None:
    if known is None or known.standing is not Standing.RUNNING:
        return None
    is_news = any(getattr(known, name) != value for name, value in news.items())
    return known.model_copy(update=news) if is_news else None

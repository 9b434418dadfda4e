"""The desk: which command becomes work, which is answered from memory, and how work is stopped."""

import asyncio
import time
from typing import Any, Protocol

import structlog

from agent import job as ends
from agent.failures import OperationFailed, Stopped, from_os_error
from agent.job import Job, Performer
from agent.journal import Entry, Journal, Standing
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
        """`journal_every`: how often it is written down how far a job is; 0 is never."""
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
        known = self._journal.get(command.op_id)
        holder = self._holders.get(command.family)
        answer = decide(known, command.decision, holder if holder != command.op_id else None)
        log.info("command", op_id=command.op_id, decision=command.decision, answer=answer)
        match answer:
            case Answer.ACCEPTED:
                await self._begin(command, known)
            case Answer.ATTACHED:
                await self._attach(command)
            case Answer.REFUSED:
                return _refuse(command, "This operation was cancelled: it never begins again.")
        return CommandReply(
            op_id=command.op_id,
            answer=answer,
            success=answer in (Answer.ACCEPTED, Answer.ATTACHED),
            busy_op_id=(holder or "") if answer is Answer.BUSY else "",
            outcome=known.outcome if known and answer is Answer.ENDED else None,
        )

    async def ask(self, question: OpQuestion) -> OpReply:
        """What is known of an operation, here and now."""
        known = self._journal.get(question.op_id)
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

    async def _begin(self, command: Command, known: Entry | None) -> None:
        """Reserve the backend before the first wait, so that a second command finds it taken."""
        if known is not None and known.decision > command.decision:
            command = command.model_copy(update={"decision": known.decision})
        job = Job(command, Gauge(command, self._reporter.progress, every=self._progress_every))
        self._jobs[command.op_id] = job
        self._holders[command.family] = command.op_id
        await self._record(
            Entry(op_id=command.op_id, standing=Standing.RUNNING, decision=command.decision, command=command)
        )
        self._in_background(asyncio.create_task(self._run(job)))

    async def _attach(self, command: Command) -> None:
        """Go on with the same work, under the newer decision."""
        known = self._journal.get(command.op_id)
        job = self._jobs.get(command.op_id)
        if known is None or job is None or command.decision <= known.decision:
            return
        job.gauge.decision = command.decision
        await self._record(known.model_copy(update={"decision": command.decision}))

    # the work -------------------------------------------------------------------------------------------------

    async def _run(self, job: Job) -> None:
        noting = asyncio.create_task(self._note_now_and_then(job))
        await job.work(self._performer)
        noting.cancel()
        await job.gauge.close()
        outcome = _outcome_of(job)
        await self._record(_ended(job, outcome))
        del self._jobs[job.command.op_id]
        del self._holders[job.command.family]
        job.mark_ended()
        log.info("ended", op_id=outcome.op_id, result=outcome.result, reason=outcome.reason, error=outcome.error)
        self.say(outcome)

    async def _note_now_and_then(self, job: Job) -> None:
        """How far it is, for whoever asks after a crash; seldom, because each note waits for the disk."""
        while self._journal_every:
            await asyncio.sleep(self._journal_every)
            known, reached = self._journal.get(job.command.op_id), _reached(job)
            is_news = known is not None and any(getattr(known, name) != value for name, value in reached.items())
            # A tombstone has the last word: nothing is written over it.
            if known is not None and known.standing is Standing.RUNNING and is_news:
                await self._record(known.model_copy(update=reached))

    async def _record(self, entry: Entry) -> None:
        """A full disk must not take away what is known in memory."""
        try:
            await self._journal.put(entry)
        except OSError:
            log.exception("journal.not_written", op_id=entry.op_id)

    # stopping -------------------------------------------------------------------------------------------------

    async def _stop(self, job: Job, command: CancelCommand, arrived: float) -> CancelReply:
        try:
            await self._journal.put(_tombstone(self._journal.get(command.op_id), command.op_id))
        except OSError:
            job.verdict = Result.INTERRUPTED
            raise
        finally:
            job.stop()
            await job.ended()
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
            await self._journal.put(_tombstone(known, command.op_id))
        if known is not None and command.mode is not CancelMode.KEEP:
            await self._performer.discard(known.command)
        bytes_done = known.bytes_done if known is not None else 0
        return CancelReply(op_id=command.op_id, answer=CancelAnswer.STOPPED, bytes_done=bytes_done)

    def _in_background(self, task: asyncio.Task[None]) -> None:
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)


def _outcome_of(job: Job) -> Outcome:
    try:
        return ends.success(job, job.result())
    except (Stopped, asyncio.CancelledError):
        return ends.stopped(job)
    except OperationFailed as why:
        return ends.failure(job, why)
    except OSError as error:
        return ends.failure(job, from_os_error(error))
    except Exception as error:
        log.exception("operation.crashed", op_id=job.command.op_id)
        return ends.failure(job, OperationFailed(Reason.NODE_ERROR, repr(error)))


def _ended(job: Job, outcome: Outcome) -> Entry:
    standing = {Result.CANCELLED: Standing.CANCELLED, Result.INTERRUPTED: Standing.INTERRUPTED}
    return Entry(
        op_id=job.command.op_id,
        standing=standing.get(outcome.result, Standing.ENDED),
        decision=job.gauge.decision,
        command=job.command,
        outcome=outcome,
        **_reached(job),
    )


def _reached(job: Job) -> dict[str, Any]:
    gauge = job.gauge
    return {"phase": gauge.phase, "bytes_done": gauge.bytes_done, "bytes_total": gauge.bytes_total}


def _tombstone(known: Entry | None, op_id: str) -> Entry:
    outcome = Outcome(op_id=op_id, result=Result.CANCELLED, reason=Reason.REQUESTED)
    if known is None:
        return Entry(op_id=op_id, standing=Standing.CANCELLED, outcome=outcome)
    outcome = outcome.model_copy(update={"decision": known.decision, "family": known.command.family})
    return known.model_copy(update={"standing": Standing.CANCELLED, "outcome": outcome})


def _refuse(command: Command, why: str) -> CommandReply:
    return CommandReply(op_id=command.op_id, answer=Answer.REFUSED, reason=Reason.REFUSED_BY_NODE, error=why)

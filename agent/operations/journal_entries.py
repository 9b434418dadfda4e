"""Builds journal entries: start, progress, tombstone and outcome of an operation."""

import asyncio
from typing import Any

import structlog

from nodesmith.agent.operations import job as outcomes
from nodesmith.agent.operations.failures import OperationFailed, Stopped, from_os_error
from nodesmith.agent.operations.job import Job
from nodesmith.agent.operations.journal import JournalEntry, JournalStatus
from nodesmith.contracts.nats.messages import Command, Outcome, Result
from nodesmith.domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)


def outcome_of(job: Job) -> Outcome:
    try:
        return outcomes.success(job, job.result())
    except (Stopped, asyncio.CancelledError):
        return outcomes.stopped(job)
    except OperationFailed as why:
        return outcomes.failure(job, why)
    except OSError as error:
        return outcomes.failure(job, from_os_error(error))
    except Exception as error:
        log.exception("operation.crashed", op_id=job.command.op_id)
        return outcomes.failure(job, OperationFailed(Reason.NODE_ERROR, repr(error)))


def begun_entry(job: Job) -> JournalEntry:
    command = job.command
    return JournalEntry(
        op_id=command.op_id, standing=JournalStatus.RUNNING, decision=job.gauge.decision, command=command
    )


def ended_entry(job: Job, outcome: Outcome) -> JournalEntry:
    """Build the final entry: an outcome closes the plan; a stopped job keeps it until it is undone or resumed.

    A stopped load has undone its plan itself, and begins again without one.
    """
    stopped = {Result.CANCELLED: JournalStatus.CANCELLED, Result.INTERRUPTED: JournalStatus.INTERRUPTED}
    standing = stopped.get(outcome.result, JournalStatus.ENDED)
    return JournalEntry(
        op_id=job.command.op_id,
        standing=standing,
        decision=job.gauge.decision,
        command=_without_secrets(job.command),
        outcome=outcome,
        plan=None if standing is JournalStatus.ENDED or job.command.kind.rules.locks_replica else job.plan,
        **progress_fields(job),
    )


def _without_secrets(command: Command) -> Command:
    """Drop the environment of a load: entries are kept for weeks, and whoever repeats the command sends it again."""
    if command.load is None:
        return command
    return command.model_copy(update={"load": command.load.model_copy(update={"environment": {}})})


def progress_fields(job: Job) -> dict[str, Any]:
    gauge = job.gauge
    return {"phase": gauge.phase, "bytes_done": gauge.bytes_done, "bytes_total": gauge.bytes_total}


def tombstone(known: JournalEntry | None, op_id: str) -> JournalEntry:
    outcome = Outcome(op_id=op_id, result=Result.CANCELLED, reason=Reason.REQUESTED)
    if known is None:
        return JournalEntry(op_id=op_id, standing=JournalStatus.CANCELLED, outcome=outcome)
    outcome = outcome.model_copy(update={"decision": known.decision, "family": known.command.family})
    return known.model_copy(update={"standing": JournalStatus.CANCELLED, "outcome": outcome})

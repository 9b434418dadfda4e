"""What is written down about an operation: how far it is, that it must not begin, how it ended."""

import asyncio
from typing import Any

import structlog

from agent import job as ends
from agent.failures import OperationFailed, Stopped, from_os_error
from agent.job import Job
from agent.journal import Entry, Standing
from contracts.messages import Outcome, Result
from domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)


def outcome_of(job: Job) -> Outcome:
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


def begun_entry(job: Job) -> Entry:
    command = job.command
    return Entry(op_id=command.op_id, standing=Standing.RUNNING, decision=job.gauge.decision, command=command)


def ended_entry(job: Job, outcome: Outcome) -> Entry:
    """An end closes the plan; one that was stopped keeps it until it is undone or gone on with."""
    stopped = {Result.CANCELLED: Standing.CANCELLED, Result.INTERRUPTED: Standing.INTERRUPTED}
    standing = stopped.get(outcome.result, Standing.ENDED)
    return Entry(
        op_id=job.command.op_id,
        standing=standing,
        decision=job.gauge.decision,
        command=job.command,
        outcome=outcome,
        plan=None if standing is Standing.ENDED else job.plan,
        **reached(job),
    )


def reached(job: Job) -> dict[str, Any]:
    gauge = job.gauge
    return {"phase": gauge.phase, "bytes_done": gauge.bytes_done, "bytes_total": gauge.bytes_total}


def tombstone(known: Entry | None, op_id: str) -> Entry:
    outcome = Outcome(op_id=op_id, result=Result.CANCELLED, reason=Reason.REQUESTED)
    if known is None:
        return Entry(op_id=op_id, standing=Standing.CANCELLED, outcome=outcome)
    outcome = outcome.model_copy(update={"decision": known.decision, "family": known.command.family})
    return known.model_copy(update={"standing": Standing.CANCELLED, "outcome": outcome})

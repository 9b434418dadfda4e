"""Journals plans: written before the first change and after each step, closed with the operation."""

from typing import Protocol

from nodesmith.agent.operations.change_plan import ChangePlan
from nodesmith.agent.operations.job import Job
from nodesmith.agent.operations.journal import Change, JournalEntry, JournalStatus
from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.domain.operation import Reason


class Plans(Protocol):
    """Storage of plans, implemented by the journal."""

    def get(self, op_id: str) -> JournalEntry | None: ...
    async def change(self, op_id: str, change: Change) -> None: ...
    async def flush(self) -> None: ...
    def plans(self) -> list[ChangePlan]: ...


async def write_plan(plans: Plans, job: Job, plan: ChangePlan) -> None:
    """Journal the plan, then adopt it in memory."""
    command = job.command

    def with_plan(known: JournalEntry | None) -> JournalEntry:
        entry = known or JournalEntry(op_id=command.op_id, standing=JournalStatus.RUNNING, command=command)
        return entry.model_copy(update={"plan": plan})

    await plans.change(command.op_id, with_plan)
    job.plan = plan


def without_plan(known: JournalEntry | None) -> JournalEntry | None:
    return known.model_copy(update={"plan": None}) if known is not None else None


def superseded(known: JournalEntry | None) -> JournalEntry | None:
    """A repeated command gets the failed outcome; a newer decision starts the operation from the beginning.

    A load or unload starts from the beginning in any case, so only its plan is dropped.
    """
    is_of_replica = known is not None and known.command.kind.rules.locks_replica
    if known is None or is_of_replica or known.standing is not JournalStatus.INTERRUPTED:
        return without_plan(known)
    outcome = Outcome(
        op_id=known.op_id,
        backend=known.command.backend,
        family=known.command.family,
        decision=known.decision,
        result=Result.FAILED,
        reason=Reason.NODE_ERROR,
        error="The operation was interrupted, and another one has changed this backend since.",
    )
    return known.model_copy(update={"standing": JournalStatus.ENDED, "outcome": outcome, "plan": None})

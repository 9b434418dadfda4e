"""Executes a plan: replaces the current version and its processes, and undoes it when a step fails."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from nodesmith.agent.disk.installed_backends import InstalledBackends
from nodesmith.agent.disk.space import Space
from nodesmith.agent.operations.change_plan import ChangePlan, Step
from nodesmith.agent.operations.failures import OperationFailed, Stopped
from nodesmith.agent.operations.job import Done, Job
from nodesmith.agent.operations.journal import Change, JournalEntry, JournalStatus
from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.agent.run.backend_processes import RunningProcesses, addresses_of, wanted_after
from nodesmith.agent.run.supervisor import DidNotStart, ProcessKeeper
from nodesmith.agent.threads import Threads
from nodesmith.contracts.nats.messages import Command, Installed, Outcome, Result
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

_REMOVAL_GRACE_S = 5.0


class Plans(Protocol):
    """Storage of plans, implemented by the journal."""

    def get(self, op_id: str) -> JournalEntry | None: ...
    async def change(self, op_id: str, change: Change) -> None: ...
    async def flush(self) -> None: ...
    def plans(self) -> list[ChangePlan]: ...


@dataclass
class _Work:
    """A plan during execution."""

    job: Job
    plan: ChangePlan
    old: list[ProcessKeeper]
    started: list[ProcessKeeper] = field(default_factory=list)


class VersionSwitch:
    """`restart`: stop, switch, start the same set. `overlap`: switch, start the new set, then stop the old one."""

    def __init__(
        self, backends: InstalledBackends, running: RunningProcesses, plans: Plans, *, threads: Threads, space: Space
    ) -> None:
        self._backends = backends
        self._running = running
        self._plans = plans
        self._threads = threads
        self._space = space
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def carry_out(self, job: Job) -> Done:
        """Execute the plan of an earlier attempt or a new one; from here on the job cannot be stopped."""
        job.commit()
        job.after_end = lambda: self._clean_up(job)
        async with self._locks[job.command.family]:
            work = await self._begin(job)
            proven = work.plan.steps.index(Step.PROVEN) + 1
            try:
                for step in work.plan.steps[:proven]:
                    await self._apply_step(work, step)
            except Exception as error:
                raise await self._undo(work, error) from error
            for step in work.plan.steps[proven : work.plan.steps.index(Step.END)]:
                await self._apply_step_if_possible(work, step)
            return await self._done(work)

    async def align(self, job: Job, installed: Installed | None) -> Done:
        """Version already installed: restart processes of other versions, and start the requested process."""
        old = self._running.of(job.command.family)
        live = self._backends.live(job.command.family)
        strays = [keeper for keeper in old if keeper.record.folder != live]
        good = [keeper for keeper in old if keeper not in strays and keeper.is_alive]
        serving = addresses_of(good)
        wanted = [record for record in wanted_after(job.command, strays) if record.key not in serving]
        await self._running.stop(strays, keep_record=True)
        try:
            started = await self._running.start(job, wanted, live, installed, old=strays)
        except DidNotStart as error:
            raise OperationFailed(Reason.DID_NOT_START, str(error)) from error
        stopped = [keeper.record.key for keeper in strays]
        return Done(bool(started or stopped), installed, installed, serving | addresses_of(started), stopped)

    async def can_resume(self, job: Job, plan: ChangePlan) -> bool:
        """Revert to OLD if that failed before; False when the disk no longer matches the plan."""
        async with self._locks[plan.family]:
            await self._threads.run(job.halt, self._backends.revert, plan)
            if await self._threads.run(job.halt, self._backends.can_begin, plan):
                return True
            log.warning("plan.outdated", op_id=plan.op_id, family=plan.family)
            await self._plans.change(plan.op_id, _without_plan)
            return False

    async def abandon(self, op_id: str) -> None:
        """After a cancel: revert to OLD and keep nothing for a retry."""
        known = self._plans.get(op_id)
        if known is None or known.plan is None:
            return
        async with self._locks[known.plan.family]:
            known = self._plans.get(op_id)
            if known is not None and known.plan is not None:
                await asyncio.to_thread(self._backends.revert, known.plan)
                await self._plans.change(op_id, _without_plan)
                await asyncio.to_thread(self._backends.clean_up, known.plan, self._plans.plans())

    # one plan -------------------------------------------------------------------------------------------------

    async def _begin(self, job: Job) -> _Work:
        """Journal the plan before the first change, after closing all other plans of this backend."""
        command = job.command
        await self._close_others(job)
        old = self._running.of(command.family)
        plan = job.plan
        if plan is None:
            draft = await self._threads.run(job.halt, self._backends.draft, command)
            plan = draft.model_copy(update={"wanted": _wanted(command, old)})
        running = [keeper.record for keeper in old]
        work = _Work(job, plan.reset().model_copy(update={"running": running}), old)
        await self._write(work, work.plan)
        return work

    async def _close_others(self, job: Job) -> None:
        """Close interrupted plans of this backend, so that they cannot resume after this change."""
        for plan in self._plans.plans():
            if plan.family != job.command.family or plan.op_id == job.command.op_id:
                continue
            if not plan.is_proven:
                await self._threads.run(job.halt, self._backends.revert, plan)
            await self._plans.change(plan.op_id, _superseded)
        await self._plans.flush()

    async def _apply_step(self, work: _Work, step: Step) -> None:
        plan = work.plan
        match step:
            case Step.STOP_OLD if plan.kind is Kind.REMOVE:
                await self._running.stop(work.old, grace=_REMOVAL_GRACE_S)
            case Step.STOP_OLD | Step.RETIRE_OLD:
                await self._running.stop(work.old, keep_record=True)
            case Step.START:
                plan = await self._start(work)
            case Step.FREE_SPACE if self._space.has_headroom():
                pass
            case _:
                await self._threads.run(work.job.halt, self._backends.apply_step, step, plan)
        await self._write(work, plan.with_done(step))

    async def _apply_step_if_possible(self, work: _Work, step: Step) -> None:
        """Apply a step after the switch; a failure is only logged, because the new version serves already."""
        try:
            await self._apply_step(work, step)
        except (OperationFailed, OSError):
            log.exception("switch.step_failed", op_id=work.plan.op_id, step=step)

    async def _start(self, work: _Work) -> ChangePlan:
        plan = work.plan
        live = self._backends.live(plan.family)
        installed = await self._threads.run(work.job.halt, self._backends.installed, plan.family)
        work.started = await self._running.start(work.job, plan.wanted, live, installed, old=work.old)
        return plan.model_copy(update={"addresses": addresses_of(work.started)})

    async def _undo(self, work: _Work, error: Exception) -> Exception:
        """Revert to OLD and restart its processes; if the disk prevents that, the plan stays open."""
        plan = work.plan
        log.warning("switch.rolled_back", op_id=plan.op_id, family=plan.family, error=str(error))
        failed: Exception | None = None
        try:
            await self._threads.run(work.job.halt, self._backends.revert, plan)
        except OSError as disk_error:
            log.exception("switch.rollback_failed", op_id=plan.op_id)
            failed = Stopped(str(disk_error))
        await self._running.restore(work.old, work.started)
        if failed is not None or not isinstance(error, DidNotStart):
            return failed or error
        return OperationFailed(Reason.ROLLED_BACK if plan.old else Reason.DID_NOT_START, str(error))

    async def _done(self, work: _Work) -> Done:
        plan = work.plan
        after = await self._threads.run(work.job.halt, self._backends.installed, plan.family)
        stopped = [record.key for record in plan.running]
        return Done(changed=True, before=plan.before, after=after, addresses=plan.addresses, stopped=stopped)

    async def _clean_up(self, job: Job) -> None:
        if job.plan is not None:
            await asyncio.to_thread(self._backends.clean_up, job.plan, self._plans.plans())

    async def _write(self, work: _Work, plan: ChangePlan) -> None:
        """Journal the plan, then adopt it in memory."""
        command = work.job.command

        def with_plan(known: JournalEntry | None) -> JournalEntry:
            entry = known or JournalEntry(op_id=command.op_id, standing=JournalStatus.RUNNING, command=command)
            return entry.model_copy(update={"plan": plan})

        await self._plans.change(command.op_id, with_plan)
        work.plan = work.job.plan = plan


def _wanted(command: Command, old: list[ProcessKeeper]) -> list[ProcessRecord]:
    return wanted_after(command, old) if command.kind is not Kind.REMOVE else []


def _without_plan(known: JournalEntry | None) -> JournalEntry | None:
    return known.model_copy(update={"plan": None}) if known is not None else None


def _superseded(known: JournalEntry | None) -> JournalEntry | None:
    """A repeated command gets the failed outcome; a newer decision starts the operation from the beginning."""
    if known is None or known.standing is not JournalStatus.INTERRUPTED:
        return _without_plan(known)
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

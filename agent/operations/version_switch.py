"""Executes a plan: replaces the current version and its processes, and undoes it when a step fails."""

import asyncio
from dataclasses import dataclass, field

import structlog

from nodesmith.agent.disk.installed_backends import InstalledBackends
from nodesmith.agent.disk.space import Space
from nodesmith.agent.operations.change_plan import ChangePlan, Step
from nodesmith.agent.operations.failures import OperationFailed, Stopped
from nodesmith.agent.operations.family_locks import FamilyLocks
from nodesmith.agent.operations.job import Done, Job
from nodesmith.agent.operations.plan_journal import Plans, superseded, without_plan, write_plan
from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.agent.run.backend_processes import RunningProcesses, wanted_after
from nodesmith.agent.run.supervisor import DidNotStart, ProcessKeeper
from nodesmith.agent.threads import Threads
from nodesmith.contracts.nats.messages import Command, Installed
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason

log = structlog.stdlib.get_logger(__name__)

_REMOVAL_GRACE_S = 5.0


@dataclass
class _Work:
    """A plan during execution."""

    job: Job
    plan: ChangePlan
    old: list[ProcessKeeper]
    started: list[ProcessKeeper] = field(default_factory=list)


@dataclass(frozen=True)
class _ToAlign:
    """What an install of the version that is already current has to do with its processes."""

    strays: list[ProcessKeeper]
    """processes of other versions"""
    wanted: list[ProcessRecord]
    serving: dict[str, str]


class VersionSwitch:
    """`restart`: stop, switch, start the same set. `overlap`: switch, start the new set, then stop the old one."""

    def __init__(
        self,
        backends: InstalledBackends,
        running: RunningProcesses,
        plans: Plans,
        locks: FamilyLocks,
        *,
        threads: Threads,
        space: Space,
    ) -> None:
        self._backends = backends
        self._running = running
        self._plans = plans
        self._threads = threads
        self._space = space
        self._locks = locks

    async def carry_out(self, job: Job) -> Done:
        """Execute the plan of an earlier attempt or a new one, once no model is being loaded or unloaded.

        From then on the job cannot be stopped.
        """
        async with self._locks.exclusive(job.command.family):
            job.commit()
            job.after_end = lambda: self._clean_up(job)
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
        processes = self._to_align(job)
        if not processes.strays and not processes.wanted:
            return Done(changed=False, before=installed, after=installed, addresses=processes.serving)
        async with self._locks.exclusive(job.command.family):
            return await self._align(job, installed, self._to_align(job))

    async def _align(self, job: Job, installed: Installed | None, processes: "_ToAlign") -> Done:
        strays, live = processes.strays, self._backends.live(job.command.family)
        await self._running.stop(strays, keep_record=True)
        try:
            started = await self._running.start(job, processes.wanted, live, installed, old=strays)
        except DidNotStart as error:
            raise OperationFailed(Reason.DID_NOT_START, str(error)) from error
        stopped = [keeper.record.key for keeper in strays]
        addresses = processes.serving | self._running.addresses_of(started)
        return Done(bool(started or stopped), installed, installed, addresses, stopped)

    def _to_align(self, job: Job) -> "_ToAlign":
        live = self._backends.live(job.command.family)
        old = self._running.of(job.command.family)
        strays = [keeper for keeper in old if keeper.record.folder != live]
        serving = self._running.addresses_of([keeper for keeper in old if keeper not in strays and keeper.is_alive])
        wanted = [record for record in wanted_after(job.command, strays) if record.key not in serving]
        return _ToAlign(strays, wanted, serving)

    async def can_resume(self, job: Job, plan: ChangePlan) -> bool:
        """Revert to OLD if that failed before; False when the disk no longer matches the plan."""
        async with self._locks.exclusive(plan.family):
            await self._threads.run(job.halt, self._backends.revert, plan)
            if await self._threads.run(job.halt, self._backends.can_begin, plan):
                return True
            log.warning("plan.outdated", op_id=plan.op_id, family=plan.family)
            await self._plans.change(plan.op_id, without_plan)
            return False

    async def abandon(self, op_id: str) -> None:
        """After a cancel: revert to OLD and keep nothing for a retry."""
        known = self._plans.get(op_id)
        if known is None or known.plan is None:
            return
        if known.plan.kind.rules.locks_replica:
            await self._plans.change(op_id, without_plan)
            return
        async with self._locks.exclusive(known.plan.family):
            known = self._plans.get(op_id)
            if known is not None and known.plan is not None:
                await asyncio.to_thread(self._backends.revert, known.plan)
                await self._plans.change(op_id, without_plan)
                await asyncio.to_thread(self._backends.clean_up, known.plan, self._plans.plans())

    # one plan -------------------------------------------------------------------------------------------------

    async def _begin(self, job: Job) -> _Work:
        """Journal the plan before the first change, after closing all other plans of this backend."""
        command = job.command
        await self._close_others(job)
        old = self._running.of(command.family)
        plan = job.plan
        if plan is None:
            plan = await self._threads.run(job.halt, self._backends.draft, command)
        # models may have been loaded or unloaded since an earlier attempt
        processes = {"running": [keeper.record for keeper in old], "wanted": _wanted(command, old)}
        work = _Work(job, plan.reset().model_copy(update=processes), old)
        await self._write(work, work.plan)
        return work

    async def _close_others(self, job: Job) -> None:
        """Close interrupted plans of this backend, so that they cannot resume after this change."""
        for plan in self._plans.plans():
            if plan.family != job.command.family or plan.op_id == job.command.op_id:
                continue
            if not plan.is_proven:
                await self._threads.run(job.halt, self._backends.revert, plan)
            await self._plans.change(plan.op_id, superseded)
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
        return plan.model_copy(update={"addresses": self._running.addresses_of(work.started)})

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
        await write_plan(self._plans, work.job, plan)
        work.plan = plan


def _wanted(command: Command, old: list[ProcessKeeper]) -> list[ProcessRecord]:
    return wanted_after(command, old) if command.kind is not Kind.REMOVE else []

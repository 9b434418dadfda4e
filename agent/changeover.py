"""Carrying out a plan: the version that serves is replaced, and what runs of it; undone when a step fails."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from agent.failures import OperationFailed, Stopped
from agent.job import Done, Job
from agent.journal import Change, Entry, Standing
from agent.launch import Record
from agent.plan import Plan, Step
from agent.running_set import RunningSet, addresses_of, wanted_after
from agent.shelf import Shelf
from agent.space import Space
from agent.supervisor import DidNotStart, Keeper
from agent.threads import Threads
from contracts.messages import Command, Installed, Outcome, Result
from domain.operation import Kind, Reason

log = structlog.stdlib.get_logger(__name__)

_REMOVAL_GRACE_S = 5.0


class Plans(Protocol):
    """Where plans are written down: the journal."""

    def get(self, op_id: str) -> Entry | None: ...
    async def change(self, op_id: str, change: Change) -> None: ...
    async def flush(self) -> None: ...
    def plans(self) -> list[Plan]: ...


@dataclass
class _Work:
    """One plan while it is carried out."""

    job: Job
    plan: Plan
    old: list[Keeper]
    started: list[Keeper] = field(default_factory=list)


class Changeover:
    """`restart`: stop, switch, start the same set again. `overlap`: switch, start beside the old set, stop that."""

    def __init__(self, shelf: Shelf, running: RunningSet, plans: Plans, *, threads: Threads, space: Space) -> None:
        self._shelf = shelf
        self._running = running
        self._plans = plans
        self._threads = threads
        self._space = space
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def carry_out(self, job: Job) -> Done:
        """The plan of an earlier try, or a new one; from here on the job cannot be stopped any more."""
        job.commit()
        job.after_end = lambda: self._clean_up(job)
        async with self._locks[job.command.family]:
            work = await self._begin(job)
            proven = work.plan.steps.index(Step.PROVEN) + 1
            try:
                for step in work.plan.steps[:proven]:
                    await self._take(work, step)
            except Exception as error:
                raise await self._undo(work, error) from error
            for step in work.plan.steps[proven : work.plan.steps.index(Step.END)]:
                await self._take_if_possible(work, step)
            return await self._done(work)

    async def align(self, job: Job, installed: Installed | None) -> Done:
        """Nothing to switch: what runs has to be what serves, and what is asked for has to run."""
        old = self._running.of(job.command.family)
        live = self._shelf.live(job.command.family)
        strays = [keeper for keeper in old if keeper.record.folder != live]
        good = [keeper for keeper in old if keeper not in strays and keeper.is_alive]
        there = addresses_of(good)
        wanted = [record for record in wanted_after(job.command, strays) if record.key not in there]
        await self._running.stop(strays, remember=True)
        try:
            started = await self._running.start(job, wanted, live, installed)
        except DidNotStart as error:
            raise OperationFailed(Reason.DID_NOT_START, str(error)) from error
        stopped = [keeper.record.key for keeper in strays]
        return Done(bool(started or stopped), installed, installed, there | addresses_of(started), stopped)

    async def can_resume(self, job: Job, plan: Plan) -> bool:
        """Back to OLD, if that was not possible before; False when the plan does not fit the disk any more."""
        async with self._locks[plan.family]:
            await self._threads.run(job.halt, self._shelf.go_back, plan)
            if await self._threads.run(job.halt, self._shelf.can_begin, plan):
                return True
            log.warning("plan.does_not_fit", op_id=plan.op_id, family=plan.family)
            await self._plans.change(plan.op_id, _without_plan)
            return False

    async def abandon(self, op_id: str) -> None:
        """After the tombstone: OLD, and nothing is kept for another try."""
        known = self._plans.get(op_id)
        if known is None or known.plan is None:
            return
        async with self._locks[known.plan.family]:
            known = self._plans.get(op_id)
            if known is not None and known.plan is not None:
                await asyncio.to_thread(self._shelf.go_back, known.plan)
                await self._plans.change(op_id, _without_plan)
                await asyncio.to_thread(self._shelf.clean_up, known.plan, self._plans.plans())

    # one plan -------------------------------------------------------------------------------------------------

    async def _begin(self, job: Job) -> _Work:
        """The plan is on the disk before the first change, and no other plan of this backend is open."""
        command = job.command
        await self._close_others(job)
        old = self._running.of(command.family)
        plan = job.plan
        if plan is None:
            draft = await self._threads.run(job.halt, self._shelf.draft, command)
            plan = draft.model_copy(update={"wanted": _wanted(command, old)})
        running = [keeper.record for keeper in old]
        work = _Work(job, plan.undone().model_copy(update={"running": running}), old)
        await self._write(work, work.plan)
        return work

    async def _close_others(self, job: Job) -> None:
        """An interrupted change of this backend that was never sent again must not be gone on with after this one."""
        for plan in self._plans.plans():
            if plan.family != job.command.family or plan.op_id == job.command.op_id:
                continue
            if not plan.is_proven:
                await self._threads.run(job.halt, self._shelf.go_back, plan)
            await self._plans.change(plan.op_id, _superseded)
        await self._plans.flush()

    async def _take(self, work: _Work, step: Step) -> None:
        plan = work.plan
        match step:
            case Step.STOP_OLD if plan.kind is Kind.REMOVE:
                await self._running.stop(work.old, grace=_REMOVAL_GRACE_S)
            case Step.STOP_OLD | Step.RETIRE_OLD:
                await self._running.stop(work.old, remember=True)
            case Step.START:
                plan = await self._start(work)
            case Step.FREE_SPACE if self._space.has_headroom():
                pass
            case _:
                await self._threads.run(work.job.halt, self._shelf.take, step, plan)
        await self._write(work, plan.with_done(step))

    async def _take_if_possible(self, work: _Work, step: Step) -> None:
        """The new version serves and is healthy: what does not work any more does not change that."""
        try:
            await self._take(work, step)
        except (OperationFailed, OSError):
            log.exception("changeover.not_finished", op_id=work.plan.op_id, step=step)

    async def _start(self, work: _Work) -> Plan:
        plan = work.plan
        live = self._shelf.live(plan.family)
        installed = await self._threads.run(work.job.halt, self._shelf.installed, plan.family)
        work.started = await self._running.start(work.job, plan.wanted, live, installed)
        return plan.model_copy(update={"addresses": addresses_of(work.started)})

    async def _undo(self, work: _Work, error: Exception) -> Exception:
        """OLD again, and what ran of it runs; while the disk does not allow that, the plan stays open."""
        plan = work.plan
        log.warning("changeover.back", op_id=plan.op_id, family=plan.family, error=str(error))
        failed: Exception | None = None
        try:
            await self._threads.run(work.job.halt, self._shelf.go_back, plan)
        except OSError as disk_error:
            log.exception("changeover.not_back", op_id=plan.op_id)
            failed = Stopped(str(disk_error))
        await self._running.bring_back(work.old, work.started)
        if failed is not None or not isinstance(error, DidNotStart):
            return failed or error
        return OperationFailed(Reason.ROLLED_BACK if plan.old else Reason.DID_NOT_START, str(error))

    async def _done(self, work: _Work) -> Done:
        plan = work.plan
        after = await self._threads.run(work.job.halt, self._shelf.installed, plan.family)
        stopped = [record.key for record in plan.running]
        return Done(changed=True, before=plan.before, after=after, addresses=plan.addresses, stopped=stopped)

    async def _clean_up(self, job: Job) -> None:
        if job.plan is not None:
            await asyncio.to_thread(self._shelf.clean_up, job.plan, self._plans.plans())

    async def _write(self, work: _Work, plan: Plan) -> None:
        """On the disk first; then it is the plan."""
        command = work.job.command

        def with_plan(known: Entry | None) -> Entry:
            entry = known or Entry(op_id=command.op_id, standing=Standing.RUNNING, command=command)
            return entry.model_copy(update={"plan": plan})

        await self._plans.change(command.op_id, with_plan)
        work.plan = work.job.plan = plan


def _wanted(command: Command, old: list[Keeper]) -> list[Record]:
    return wanted_after(command, old) if command.kind is not Kind.REMOVE else []


def _without_plan(known: Entry | None) -> Entry | None:
    return known.model_copy(update={"plan": None}) if known is not None else None


def _superseded(known: Entry | None) -> Entry | None:
    """A repeated command gets the failed outcome; a newer decision starts the operation from the beginning."""
    if known is None or known.standing is not Standing.INTERRUPTED:
        return _without_plan(known)
    outcome = Outcome(
        op_id=known.op_id,
        backend=known.command.backend,
        family=known.command.family,
        decision=known.decision,
        result=Result.FAILED,
        reason=Reason.NODE_ERROR,
        error="It was interrupted, and another operation has changed this backend since.",
    )
    return known.model_copy(update={"standing": Standing.ENDED, "outcome": outcome, "plan": None})

"""What an earlier life of this agent left in the middle: each plan goes back to OLD or on to NEW, before all else."""

import asyncio

import structlog

from agent.journal import DiskJournal, Entry, Standing
from agent.launch import Process
from agent.plan import Plan, Step
from agent.running_files import RunningFiles
from agent.shelf import Shelf
from agent.space import Space
from contracts.messages import Outcome, Result
from domain.operation import Kind

log = structlog.stdlib.get_logger(__name__)


class Recovery:
    """Runs before processes are found again: `running/` then says what should run."""

    def __init__(self, journal: DiskJournal, shelf: Shelf, files: RunningFiles, *, space: Space, grace: float) -> None:
        self._journal = journal
        self._shelf = shelf
        self._files = files
        self._space = space
        self._grace = grace

    async def run(self) -> list[Outcome]:
        """Settle everything; the outcomes are news for the control plane."""
        unsettled = await asyncio.to_thread(self._journal.load)
        settled = [await self._settle(entry) for entry in unsettled]
        return [entry.outcome for entry in settled if entry.outcome is not None]

    async def _settle(self, entry: Entry) -> Entry:
        """A disk that does not allow it must not keep the agent from starting; the next start tries again."""
        try:
            settled = await self._settled(entry)
            await self._journal.put(settled)
        except OSError:
            log.exception("recovery.failed", op_id=entry.op_id)
            if entry.standing is Standing.CANCELLED:
                return entry
            settled = entry.interrupted()
            self._journal.remember(settled)
        return settled

    async def _settled(self, entry: Entry) -> Entry:
        plan = entry.plan
        if plan is None:
            return entry.interrupted()
        if plan.is_proven:
            return await self._go_on(entry, plan)
        await self._go_back(plan)
        if entry.standing is Standing.CANCELLED:
            return entry.model_copy(update={"plan": None})
        return entry.interrupted().model_copy(update={"plan": plan.undone()})

    async def _go_back(self, plan: Plan) -> None:
        """The tree is OLD, and what ran before is written down to run again; whatever else runs is ended later."""
        log.warning("recovery.back", op_id=plan.op_id, family=plan.family, done=plan.done)
        await asyncio.to_thread(self._shelf.go_back, plan)
        await asyncio.to_thread(self._write_down, plan)

    def _write_down(self, plan: Plan) -> None:
        """One that was brought back already, before the end of the operation was written, is left alone."""
        new = self._shelf.version(plan.family, plan.to)
        of_family = [record for record in self._files.everything() if record.family == plan.family]
        for record in of_family:
            if record.folder == new:
                self._files.forget(record.key)
        there = {record.key for record in of_family if record.folder != new}
        for record in plan.running:
            if record.key not in there:
                self._files.write(record)

    async def _go_on(self, entry: Entry, plan: Plan) -> Entry:
        """The tree is NEW, what it replaced has ended, and the outcome is the one that was missing."""
        log.warning("recovery.forward", op_id=plan.op_id, family=plan.family, done=plan.done)
        await asyncio.to_thread(self._finish_tree, plan)
        await self._retire(plan)
        after = await asyncio.to_thread(self._shelf.installed, plan.family)
        outcome = Outcome(
            op_id=entry.op_id,
            backend=entry.command.backend,
            family=plan.family,
            decision=entry.decision,
            result=Result.SUCCEEDED,
            changed=True,
            before=plan.before,
            after=after,
            addresses=plan.addresses,
            stopped_process_keys=[record.key for record in plan.running],
            bytes_fetched=entry.bytes_done,
        )
        return entry.model_copy(update={"standing": Standing.ENDED, "outcome": outcome, "plan": None})

    def _finish_tree(self, plan: Plan) -> None:
        for step in plan.steps:
            if step is not Step.FREE_SPACE or not self._space.has_headroom():
                self._shelf.take(step, plan)

    async def _retire(self, plan: Plan) -> None:
        """What ran beside the new version gets its time to finish; of a removed backend nothing is left to run."""
        if plan.kind is Kind.REMOVE:
            for record in plan.running:
                self._files.forget(record.key)
        serving = {record.pid for record in self._files.everything()}
        old = [Process.find(record) for record in plan.running if record.pid not in serving]
        await asyncio.gather(*(process.stop(self._grace) for process in old if process is not None))

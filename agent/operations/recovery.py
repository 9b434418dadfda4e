"""Recovery at start: rolls each interrupted plan back to OLD or forward to NEW before anything else runs."""

import asyncio

import structlog

from nodesmith.agent.disk.installed_backends import InstalledBackends
from nodesmith.agent.disk.space import Space
from nodesmith.agent.operations.change_plan import ChangePlan, Step
from nodesmith.agent.operations.journal import DiskJournal, JournalEntry, JournalStatus
from nodesmith.agent.run.backend_process import BackendProcess
from nodesmith.agent.run.process_records import ProcessRecords
from nodesmith.agent.run.replica_reports import report_number
from nodesmith.contracts.nats.messages import Outcome, Result

log = structlog.stdlib.get_logger(__name__)


class Recovery:
    """Runs before processes are adopted, so that `running/` lists what should run."""

    def __init__(
        self,
        journal: DiskJournal,
        backends: InstalledBackends,
        process_records: ProcessRecords,
        *,
        space: Space,
        grace: float,
    ) -> None:
        self._journal = journal
        self._backends = backends
        self._records = process_records
        self._space = space
        self._grace = grace

    async def run(self) -> list[Outcome]:
        """Settle all interrupted operations; return the outcomes to report to the control plane."""
        unsettled = await asyncio.to_thread(self._journal.load)
        settled = [await self._settle(entry) for entry in unsettled]
        return [entry.outcome for entry in settled if entry.outcome is not None]

    async def _settle(self, entry: JournalEntry) -> JournalEntry:
        """Settle one entry; on a disk error the agent starts anyway and the next start retries."""
        try:
            settled = await self._settled_entry(entry)
            await self._journal.put(settled)
        except OSError:
            log.exception("recovery.failed", op_id=entry.op_id)
            if entry.standing is JournalStatus.CANCELLED:
                return entry
            settled = entry.interrupted()
            self._journal.keep_in_memory(settled)
        return settled

    async def _settled_entry(self, entry: JournalEntry) -> JournalEntry:
        plan = entry.plan
        if plan is None:
            return entry.interrupted()
        if plan.is_proven:
            return await self._roll_forward(entry, plan)
        await self._revert(plan)
        if entry.standing is JournalStatus.CANCELLED:
            return entry.model_copy(update={"plan": None})
        begins_again = plan.kind.rules.locks_replica
        return entry.interrupted().model_copy(update={"plan": None if begins_again else plan.reset()})

    async def _revert(self, plan: ChangePlan) -> None:
        """Restore the OLD tree and the records of its processes; adoption stops all other processes later."""
        log.warning("recovery.rolled_back", op_id=plan.op_id, family=plan.family, done=plan.done)
        if plan.kind.rules.locks_replica:
            for record in plan.wanted:  # adoption stops its process, which may have become ready
                self._records.forget(record.key)
            return
        await asyncio.to_thread(self._backends.revert, plan)
        await asyncio.to_thread(self._restore_records, plan)

    def _restore_records(self, plan: ChangePlan) -> None:
        """Restore the records of the old processes, except those already restored before the agent ended."""
        new = self._backends.version(plan.family, plan.to)
        of_family = [record for record in self._records.everything() if record.family == plan.family]
        for record in of_family:
            if record.folder == new:
                self._records.forget(record.key)
        restored = {record.key for record in of_family if record.folder != new}
        for record in plan.running:
            if record.key not in restored:
                self._records.write(record)

    async def _roll_forward(self, entry: JournalEntry, plan: ChangePlan) -> JournalEntry:
        """Complete the NEW tree, stop the replaced processes, and build the missing outcome."""
        log.warning("recovery.rolled_forward", op_id=plan.op_id, family=plan.family, done=plan.done)
        await asyncio.to_thread(self._finish_tree, plan)
        await self._stop_replaced(plan)
        after = await asyncio.to_thread(self._backends.installed, plan.family)
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
            report=report_number(),
        )
        return entry.model_copy(update={"standing": JournalStatus.ENDED, "outcome": outcome, "plan": None})

    def _finish_tree(self, plan: ChangePlan) -> None:
        for step in plan.steps:
            if step is not Step.FREE_SPACE or not self._space.has_headroom():
                self._backends.apply_step(step, plan)

    async def _stop_replaced(self, plan: ChangePlan) -> None:
        """Stop the replaced processes with the usual grace; drop the records of a removed backend or replica."""
        if plan.kind.rules.removes:
            for record in plan.running:
                self._records.forget(record.key)
        serving = {record.pid for record in self._records.everything()}
        old = [BackendProcess.find(record) for record in plan.running if record.pid not in serving]
        await asyncio.gather(*(process.stop(self._grace) for process in old if process is not None))

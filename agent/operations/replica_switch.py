"""Loads and unloads replicas of models: starts and stops one process of an installed backend, by a journaled plan."""

import asyncio
import re
from collections.abc import Iterable

import structlog

from nodesmith.agent.disk.installed_backends import InstalledBackends, not_installed
from nodesmith.agent.fetch.model_files import ModelFiles
from nodesmith.agent.operations.change_plan import ChangePlan, Step, VersionFolder
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.family_locks import FamilyLocks
from nodesmith.agent.operations.job import Done, Job
from nodesmith.agent.operations.plan_journal import Plans, write_plan
from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.agent.run.backend_processes import RunningProcesses
from nodesmith.agent.run.replica_reports import ReplicaReporter
from nodesmith.agent.run.supervisor import DidNotStart, ProcessKeeper
from nodesmith.agent.threads import Threads
from nodesmith.contracts.nats.loads import LoadOrder
from nodesmith.contracts.nats.messages import Installed
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason
from nodesmith.domain.replica import process_key

log = structlog.stdlib.get_logger(__name__)

_PATH = re.compile(r"/[!-~]{0,500}")


class ReplicaSwitch:
    """A load can be stopped until its replica is ready; then, or when it fails, nothing of it is left."""

    def __init__(
        self,
        backends: InstalledBackends,
        running: RunningProcesses,
        files: ModelFiles,
        plans: Plans,
        *,
        locks: FamilyLocks,
        reporter: ReplicaReporter,
        threads: Threads,
    ) -> None:
        self._backends = backends
        self._running = running
        self._files = files
        self._plans = plans
        self._locks = locks
        self._reporter = reporter
        self._threads = threads

    async def perform(self, job: Job) -> Done:
        """Carry out a load or unload; after an interruption it begins again, with the files that are there."""
        job.plan = None
        if not job.command.model_id:
            raise OperationFailed(Reason.REFUSED_BY_NODE, "The order does not say which model.")
        return await (self._unload(job) if job.command.kind is Kind.UNLOAD else self._load(job))

    def loads(self) -> list[LoadOrder]:
        """Return what all replicas of this node load, and what open plans would."""
        records = [*self._running.records(), *(record for plan in self._plans.plans() for record in plan.wanted)]
        return [record.load for record in records if record.load is not None]

    # load -----------------------------------------------------------------------------------------------------

    async def _load(self, job: Job) -> Done:
        load = _order_of(job)
        family = job.command.family
        if self._backends.live(family) is None:
            raise not_installed(family)
        job.gauge.move(Phase.RESOLVING)
        async with self._files.fetched(job, load) as arguments, self._locks.shared(family):
            return await self._start(job, load, arguments)

    async def _start(self, job: Job, load: LoadOrder, arguments: Iterable[str]) -> Done:
        installed = await self._threads.run(job.halt, self._backends.installed, job.command.family)
        record = self._record(job, load, tuple(arguments), installed)
        old = self._running.named(record.key)
        if any(_serves(keeper, record) for keeper in old):
            return self._done(changed=False, installed=installed, keepers=old)
        plan = await self._begin(job, record.family, installed, wanted=[record])
        await self._running.stop(old)
        plan = await self._record_step(job, plan, Step.STOP_OLD)
        try:
            keeper = await self._running.load(job, record)
        except DidNotStart as error:
            raise OperationFailed(Reason.DID_NOT_START, str(error)) from error
        try:
            await self._running.publish()
            job.commit()
            plan = plan.model_copy(update={"addresses": self._running.addresses_of([keeper])})
            await self._record_step(job, await self._record_step(job, plan, Step.START), Step.PROVEN)
        except (Exception, asyncio.CancelledError):
            await self._running.stop([keeper], grace=0.0)
            raise
        stopped = [each.record.key for each in old]
        return self._done(changed=True, installed=installed, keepers=[keeper], stopped=stopped)

    def _record(
        self, job: Job, load: LoadOrder, arguments: tuple[str, ...], installed: Installed | None
    ) -> ProcessRecord:
        command, live = job.command, self._backends.live(job.command.family)
        if live is None or installed is None:
            raise not_installed(command.family)
        return ProcessRecord(
            key=process_key(command.model_id, command.replica_index),
            family=command.family,
            backend=installed.name or command.family,
            model_id=command.model_id,
            replica=command.replica_index,
            version=installed.version,
            folder=live,
            load=load,
            arguments=arguments,
            op_id=command.op_id,
        )

    # unload ---------------------------------------------------------------------------------------------------

    async def _unload(self, job: Job) -> Done:
        key = process_key(job.command.model_id, job.command.replica_index)
        found = self._running.named(key)
        if not found:
            return self._done(changed=False)
        family = found[0].record.family
        async with self._locks.shared(family):
            found = self._running.named(key)
            installed = await self._threads.run(job.halt, self._backends.installed, family)
            plan = await self._begin(job, family, installed, running=[keeper.record for keeper in found])
            await self._running.stop(found)
            await self._record_step(job, await self._record_step(job, plan, Step.STOP_OLD), Step.PROVEN)
        for load in (keeper.record.load for keeper in found if keeper.record.load is not None):
            await asyncio.to_thread(self._files.touch, load)
        return self._done(changed=True, installed=installed, stopped=[key])

    # the plan -------------------------------------------------------------------------------------------------

    async def _begin(
        self,
        job: Job,
        family: str,
        installed: Installed | None,
        *,
        running: Iterable[ProcessRecord] = (),
        wanted: Iterable[ProcessRecord] = (),
    ) -> ChangePlan:
        """Journal the plan before the first change."""
        live = self._backends.live(family)
        place = VersionFolder(folder=live.name if live else "", digest=installed.digest if installed else "")
        plan = ChangePlan(
            op_id=job.command.op_id,
            kind=job.command.kind,
            family=family,
            old=place,
            to=place,
            running=list(running),
            wanted=list(wanted),
            before=installed,
        )
        await self._plans.flush()
        await write_plan(self._plans, job, plan)
        return plan

    async def _record_step(self, job: Job, plan: ChangePlan, step: Step) -> ChangePlan:
        plan = plan.with_done(step)
        await write_plan(self._plans, job, plan)
        return plan

    def _done(
        self,
        *,
        changed: bool,
        installed: Installed | None = None,
        keepers: Iterable[ProcessKeeper] = (),
        stopped: Iterable[str] = (),
    ) -> Done:
        addresses = self._running.addresses_of(keepers)
        return Done(changed, installed, installed, addresses, list(stopped), report=self._reporter.last)


def _order_of(job: Job) -> LoadOrder:
    load = job.command.load
    if load is None or load.model != job.command.model_id:
        raise OperationFailed(Reason.REFUSED_BY_NODE, "The order does not say what to load.")
    if not _PATH.fullmatch(load.ready_path):
        raise OperationFailed(Reason.REFUSED_BY_NODE, f"{load.ready_path!r} is no path of an HTTP request.")
    return load


def _serves(keeper: ProcessKeeper, wanted: ProcessRecord) -> bool:
    """Whether that replica runs already, as the order wants it."""
    same = (keeper.record.load, keeper.record.folder) == (wanted.load, wanted.folder)
    return same and keeper.is_ready and not keeper.is_stopping

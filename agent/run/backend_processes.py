"""Starts, stops and restores the processes of a backend during a version change."""

from collections.abc import Iterable
from pathlib import Path

import structlog

from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Job
from nodesmith.agent.run.backend_process import ProcessRecord
from nodesmith.agent.run.replica_addresses import DirectAddresses, ReplicaAddresses
from nodesmith.agent.run.supervisor import DidNotStart, ProcessKeeper, Supervisor
from nodesmith.contracts.nats.messages import Command, Installed
from nodesmith.domain.operation import Phase, Reason
from nodesmith.domain.replica import process_key

log = structlog.stdlib.get_logger(__name__)


class RunningProcesses:
    """Processes of the supervisor, by backend; `grace` is the setting `stop_grace`."""

    def __init__(self, supervisor: Supervisor, *, grace: float, reachable: ReplicaAddresses | None = None) -> None:
        self._supervisor = supervisor
        self._grace = grace
        self._reachable = reachable or DirectAddresses()

    def of(self, family: str) -> list[ProcessKeeper]:
        return self._supervisor.of(family)

    async def start(
        self,
        job: Job,
        wanted: list[ProcessRecord],
        folder: Path | None,
        installed: Installed | None,
        *,
        old: list[ProcessKeeper],
    ) -> list[ProcessKeeper]:
        """Start all from one version and wait until healthy; on failure stop them. `old`: the processes before."""
        if not wanted or folder is None:
            return []
        job.gauge.move(Phase.STARTING)
        started: list[ProcessKeeper] = []
        try:
            for record in wanted:
                started.append(await self._supervisor.start(_at(record, folder, installed)))
                await self._reachable.sync()
                await self._retire(record, old)
        except BaseException:
            await self._stop_started(started, old)
            raise
        return started

    async def load(self, job: Job, record: ProcessRecord) -> ProcessKeeper:
        """Start one replica and wait until it is ready."""
        job.gauge.move(Phase.STARTING)
        return await self._supervisor.start(record, lambda: job.gauge.move(Phase.LOADING))

    async def publish(self) -> None:
        """Make the replicas that are ready reachable at their addresses."""
        await self._reachable.sync()

    def addresses_of(self, keepers: Iterable[ProcessKeeper]) -> dict[str, str]:
        """The addresses to report."""
        return {keeper.record.key: self._reachable.address_of(keeper.record) for keeper in keepers}

    def records(self) -> list[ProcessRecord]:
        return [keeper.record for keeper in self._supervisor.everything()]

    def named(self, key: str) -> list[ProcessKeeper]:
        keeper = self._supervisor.get(key)
        return [keeper] if keeper is not None else []

    async def _retire(self, record: ProcessRecord, old: list[ProcessKeeper]) -> None:
        """Move models over one by one: two versions of all of them may not fit into the memory."""
        if record.load is not None:
            await self.stop([keeper for keeper in old if keeper.record.key == record.key], keep_record=True)

    async def stop(
        self, keepers: list[ProcessKeeper], *, grace: float | None = None, keep_record: bool = False
    ) -> None:
        for keeper in keepers:
            if self._supervisor.get(keeper.record.key) is keeper:
                await self._reachable.drain(keeper.record.key)
        survivors = await self._supervisor.stop(
            keepers, self._grace if grace is None else grace, keep_record=keep_record
        )
        if survivors:
            keys = ", ".join(keeper.record.key for keeper in survivors)
            raise OperationFailed(Reason.STILL_RUNS, f"These processes could not be stopped: {keys}.")

    async def restore(self, old: list[ProcessKeeper], started: list[ProcessKeeper]) -> None:
        """Stop the new processes and run the old ones again; one that fails to start is retried by its keeper."""
        await self._stop_started(started, old)
        for keeper in old:
            try:
                if not self._supervisor.reinstate(keeper):
                    await self._supervisor.start(keeper.record)
            except (DidNotStart, OperationFailed, OSError) as error:
                log.error("switch.old_version_not_started", key=keeper.record.key, error=str(error))  # noqa: TRY400
                self._supervisor.adopt_or_restart(keeper.record)

    async def _stop_started(self, started: list[ProcessKeeper], old: list[ProcessKeeper]) -> None:
        """Stop the new processes; keep the records of keys that ran before, since a full disk may prevent a rewrite."""
        keys = {keeper.record.key for keeper in old}
        for is_kept in (True, False):
            chosen = [keeper for keeper in started if (keeper.record.key in keys) is is_kept]
            await self._supervisor.stop(chosen, 0.0, keep_record=is_kept)


def wanted_after(command: Command, running: list[ProcessKeeper]) -> list[ProcessRecord]:
    """Return the running set plus the process that the command requests."""
    wanted = {keeper.record.key: keeper.record for keeper in running}
    if command.start:
        model = command.model_id or command.name or command.backend or command.family
        key = process_key(model, command.replica_index)
        record = ProcessRecord(
            key=key,
            family=command.family,
            backend=command.backend or command.family,
            model_id=model,
            replica=command.replica_index,
            folder=Path(),
        )
        wanted.setdefault(key, record)
    return list(wanted.values())


def _at(record: ProcessRecord, folder: Path, installed: Installed | None) -> ProcessRecord:
    version = installed.version if installed is not None else ""
    return record.model_copy(update={"folder": folder, "version": version, "pid": 0, "port": 0})

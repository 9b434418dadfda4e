"""The processes of one backend around a change of it: which should run, started together, stopped, brought back."""

from pathlib import Path

import structlog

from agent.failures import OperationFailed
from agent.job import Job
from agent.launch import Record
from agent.supervisor import DidNotStart, Keeper, Supervisor
from contracts.messages import Command, Installed
from domain.operation import Phase, Reason

log = structlog.stdlib.get_logger(__name__)


class RunningSet:
    """`stop_grace` of the settings is what a process gets to finish its work."""

    def __init__(self, supervisor: Supervisor, *, grace: float) -> None:
        self._supervisor = supervisor
        self._grace = grace

    def of(self, family: str) -> list[Keeper]:
        return self._supervisor.of(family)

    async def start(
        self, job: Job, wanted: list[Record], folder: Path | None, installed: Installed | None
    ) -> list[Keeper]:
        """All of them from one version, healthy; `DidNotStart` leaves none."""
        if not wanted or folder is None:
            return []
        job.gauge.move(Phase.STARTING)
        started: list[Keeper] = []
        try:
            for record in wanted:
                started.append(await self._supervisor.start(_at(record, folder, installed)))  # noqa: PERF401 - kept on failure
        except BaseException:
            await self._supervisor.stop(started, 0.0)
            raise
        return started

    async def stop(self, keepers: list[Keeper], *, grace: float | None = None, remember: bool = False) -> None:
        survivors = await self._supervisor.stop(keepers, self._grace if grace is None else grace, remember=remember)
        if survivors:
            keys = ", ".join(keeper.record.key for keeper in survivors)
            raise OperationFailed(Reason.STILL_RUNS, f"These processes do not end: {keys}.")

    async def bring_back(self, old: list[Keeper], started: list[Keeper]) -> None:
        """What ran before runs again, and nothing of what was started instead; none is given up for being difficult."""
        await self._supervisor.stop(started, 0.0)
        for keeper in old:
            try:
                if not self._supervisor.take_back(keeper):
                    await self._supervisor.start(keeper.record)
            except (DidNotStart, OperationFailed, OSError) as error:
                log.error("changeover.old_version_does_not_start", key=keeper.record.key, error=str(error))  # noqa: TRY400
                self._supervisor.take_up(keeper.record)


def process_key(model: str, replica: int) -> str:
    """As LocalAI names a process: <model>#<replica>."""
    return f"{model}#{replica}"


def wanted_after(command: Command, running: list[Keeper]) -> list[Record]:
    """The same set again, and what the command asks for."""
    wanted = {keeper.record.key: keeper.record for keeper in running}
    if command.start:
        model = command.model_id or command.name or command.backend or command.family
        key = process_key(model, command.replica_index)
        record = Record(
            key=key,
            family=command.family,
            backend=command.backend or command.family,
            model_id=model,
            replica=command.replica_index,
            folder=Path(),
        )
        wanted.setdefault(key, record)
    return list(wanted.values())


def addresses_of(keepers: list[Keeper]) -> dict[str, str]:
    return {keeper.record.key: keeper.record.address for keeper in keepers}


def _at(record: Record, folder: Path, installed: Installed | None) -> Record:
    version = installed.version if installed is not None else ""
    return record.model_copy(update={"folder": folder, "version": version, "pid": 0, "port": 0})

"""Replacing the version that serves, and whatever runs of it; back to the old one when the new one is not healthy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent.failures import OperationFailed
from agent.job import Job
from agent.launch import Record
from agent.shelf import Shelf
from agent.supervisor import DidNotStart, Keeper, Supervisor
from agent.threads import Threads
from contracts.messages import Command, Installed, UpgradePolicy
from domain.operation import Phase, Reason

log = structlog.stdlib.get_logger(__name__)

_REMOVAL_GRACE_S = 5.0

Swap = Callable[[], Installed | None]


@dataclass(frozen=True)
class Changed:
    """What serves now, and what that did to the processes."""

    after: Installed | None
    addresses: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)


class Changeover:
    """`restart`: stop, swap, start the same set again. `overlap`: swap, start beside the old set, then stop that."""

    def __init__(self, shelf: Shelf, supervisor: Supervisor, threads: Threads, *, grace: float) -> None:
        self._shelf = shelf
        self._supervisor = supervisor
        self._threads = threads
        self._grace = grace

    async def swap(self, job: Job, swap: Swap) -> Changed:
        """Do the swap; what ran of the family, and what is asked for, runs of the new version afterwards."""
        command = job.command
        family = command.family
        old = self._supervisor.of(family)
        wanted = _wanted(command, old)
        before = await self._threads.run(job.halt, self._shelf.pointers, family)
        if command.policy is not UpgradePolicy.OVERLAP:
            await self._stop(old, remember=True)
        after = await self._threads.run(job.halt, swap)
        try:
            addresses = await self._start(job, wanted, after)
        except (DidNotStart, OperationFailed) as error:
            raise await self._go_back(job, before, old, error) from error
        if command.policy is UpgradePolicy.OVERLAP:
            await self._stop(old, remember=True)
        await self._threads.run(job.halt, self._shelf.prune, family)
        return Changed(after, addresses, [keeper.record.key for keeper in old])

    async def align(self, job: Job, installed: Installed | None) -> Changed:
        """Nothing to swap: what runs has to be what serves, and what is asked for has to run."""
        old = self._supervisor.of(job.command.family)
        live = self._shelf.live(job.command.family)
        strays = [keeper for keeper in old if keeper.record.folder != live]
        good = {keeper.record.key: keeper.record.address for keeper in old if keeper not in strays and keeper.is_alive}
        wanted = [record for record in _wanted(job.command, strays) if record.key not in good]
        await self._stop(strays, remember=True)
        try:
            started = await self._start(job, wanted, installed)
        except DidNotStart as error:
            raise OperationFailed(Reason.DID_NOT_START, str(error)) from error
        return Changed(installed, good | started, [keeper.record.key for keeper in strays])

    async def stop_all(self, family: str) -> list[str]:
        """Before the files go: a process that survives keeps them."""
        running = self._supervisor.of(family)
        await self._stop(running, grace=_REMOVAL_GRACE_S)
        return [keeper.record.key for keeper in running]

    async def _start(self, job: Job, wanted: list[Record], installed: Installed | None) -> dict[str, str]:
        folder = self._shelf.live(job.command.family)
        if not wanted or folder is None:
            return {}
        job.gauge.move(Phase.STARTING)
        started: list[Keeper] = []
        try:
            for record in wanted:
                started.append(await self._supervisor.start(_at(record, folder, installed)))  # noqa: PERF401 - kept on failure
        except BaseException:
            await self._supervisor.stop(started, 0.0, remember=True)
            raise
        return {keeper.record.key: keeper.record.address for keeper in started}

    async def _go_back(
        self, job: Job, before: tuple[str | None, str | None], old: list[Keeper], error: Exception
    ) -> OperationFailed:
        """The old version serves again and what ran of it runs; without an old version the new one stays, stopped."""
        family = job.command.family
        if before[0] is None:
            return OperationFailed(Reason.DID_NOT_START, str(error))
        log.warning("changeover.back", family=family, error=str(error))
        await self._threads.run(job.halt, self._shelf.restore, family, before)
        for keeper in old:
            if not self._supervisor.take_back(keeper):
                await self._revive(keeper)
        return OperationFailed(Reason.ROLLED_BACK, str(error))

    async def _revive(self, keeper: Keeper) -> None:
        try:
            await self._supervisor.start(keeper.record)
        except (DidNotStart, OperationFailed) as error:
            log.error("changeover.old_version_does_not_start", key=keeper.record.key, error=str(error))  # noqa: TRY400

    async def _stop(self, keepers: list[Keeper], *, grace: float | None = None, remember: bool = False) -> None:
        survivors = await self._supervisor.stop(keepers, self._grace if grace is None else grace, remember=remember)
        if survivors:
            keys = ", ".join(keeper.record.key for keeper in survivors)
            raise OperationFailed(Reason.STILL_RUNS, f"These processes do not end: {keys}.")


def process_key(model: str, replica: int) -> str:
    """As LocalAI names a process: <model>#<replica>."""
    return f"{model}#{replica}"


def _wanted(command: Command, running: list[Keeper]) -> list[Record]:
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


def _at(record: Record, folder: Path, installed: Installed | None) -> Record:
    version = installed.version if installed is not None else ""
    return record.model_copy(update={"folder": folder, "version": version, "pid": 0, "port": 0})

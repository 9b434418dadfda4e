"""Installs, upgrades, rolls back and removes backends on this node's disk; loads and unloads models."""

import asyncio

from nodesmith.agent.disk.archive import OpenArchive, Unpacker
from nodesmith.agent.disk.archive_policy import ArchiveLimits
from nodesmith.agent.disk.installed_backends import InstalledBackends, not_installed
from nodesmith.agent.disk.space import Space
from nodesmith.agent.fetch.downloads import Consume, Downloads, FetchPlan
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Done, Job
from nodesmith.agent.operations.replica_switch import ReplicaSwitch
from nodesmith.agent.operations.version_switch import VersionSwitch
from nodesmith.agent.threads import Threads
from nodesmith.contracts.nats.messages import Command, Installed
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason


class Installer:
    """Fetches, verifies, unpacks beside the live version, then switches; the old version serves until the switch."""

    def __init__(
        self,
        backends: InstalledBackends,
        downloads: Downloads,
        switch: VersionSwitch,
        replicas: ReplicaSwitch,
        *,
        threads: Threads,
        space: Space,
        limits: ArchiveLimits,
        at_once: int,
    ) -> None:
        self._backends = backends
        self._downloads = downloads
        self._switch = switch
        self._replicas = replicas
        self._threads = threads
        self._space = space
        self._limits = limits
        self._slots = asyncio.Semaphore(at_once)

    async def perform(self, job: Job) -> Done:
        """Carry out the command; after an interruption, resume its journaled plan without resolving it again."""
        if job.command.kind.rules.locks_replica:
            return await self._replicas.perform(job)
        if job.plan is not None and await self._switch.can_resume(job, job.plan):
            await self._downloads.discard(job.command)  # already unpacked beside the live version
            return await self._switch.carry_out(job)
        job.plan = None
        match job.command.kind:
            case Kind.INSTALL | Kind.UPGRADE:
                async with self._slots:
                    return await self._install(job)
            case Kind.ROLLBACK:
                job.gauge.move(Phase.SWAPPING)
                return await self._switch.carry_out(job)
            case Kind.REMOVE:
                return await self._remove(job)
        raise OperationFailed(Reason.REFUSED_BY_NODE, f"This agent cannot do {job.command.kind}.")

    async def discard(self, command: Command) -> None:
        await self._downloads.discard(command)

    async def abandon(self, op_id: str) -> None:
        await self._switch.abandon(op_id)

    async def list_backends(self) -> list[Installed]:
        return await asyncio.to_thread(self._backends.everything)

    async def current_digest(self, family: str) -> str:
        """Return the digest of the installed version, or an empty string."""
        installed = await asyncio.to_thread(self._backends.installed, family)
        return installed.digest if installed is not None else ""

    async def _install(self, job: Job) -> Done:
        command = job.command
        job.gauge.move(Phase.RESOLVING)
        before = await self._threads.run(job.halt, self._backends.installed, command.family)
        if before is None and command.kind is Kind.UPGRADE:
            raise not_installed(command.family)
        if self._is_installed(before, command, command.sha256):
            return await self._switch.align(job, before)
        plan = await self._downloads.plan(command)
        if self._is_installed(before, command, plan.digest):
            return await self._switch.align(job, before)
        return await self._replace(job, plan, before)

    def _is_installed(self, installed: Installed | None, command: Command, digest: str) -> bool:
        """Whether this digest is already installed and runnable."""
        if installed is None or command.force or not _is_same(installed, digest):
            return False
        return self._backends.is_runnable(command.family)

    async def _replace(self, job: Job, plan: FetchPlan, before: Installed | None) -> Done:
        """Unpack while downloading; switch only after the digest is verified and all files are synced."""
        command, run = job.command, self._threads.run
        try:
            async with self._downloads.fetched(job, plan, self._unpacking(job, plan)) as artifact:
                if self._is_installed(before, command, artifact.digest):
                    return await self._switch.align(job, before)
                staging = self._backends.staging(command.family, command.op_id)
                await run(job.halt, self._backends.seal, staging, command, artifact.digest, job.halt)
                job.gauge.move(Phase.SWAPPING)
                return await self._switch.carry_out(job)
        finally:
            if job.plan is None:
                await run(job.halt, self._backends.unstage, command.family, command.op_id)

    def _unpacking(self, job: Job, plan: FetchPlan) -> Consume:
        """Build the consumer that unpacks into an empty folder, again whenever the download restarts."""
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_soon_threadsafe(job.gauge.mark_active)

        def unpack(archives: list[OpenArchive]) -> None:
            staging = self._backends.stage(job.command.family, job.command.op_id)
            unpacker = Unpacker(staging, self._limits, job.halt, tick, require_space=self._space.require)
            for archive in archives:
                (unpacker.unpack_layer if plan.is_image else unpacker.unpack)(archive)
            unpacker.finish()

        return unpack

    async def _remove(self, job: Job) -> Done:
        if not await self._threads.run(job.halt, self._backends.has_family, job.command.family):
            return Done(changed=False)
        return await self._switch.carry_out(job)


def _is_same(installed: Installed, digest: str) -> bool:
    wanted = digest.removeprefix("sha256:").lower()
    return bool(wanted) and installed.digest.removeprefix("sha256:") == wanted

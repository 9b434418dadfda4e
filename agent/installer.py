"""Installing, upgrading and removing backends for real."""

import asyncio

from agent.archive import OpenArchive, Unpacker
from agent.changeover import Changeover
from agent.downloads import Consume, Downloads, Plan
from agent.failures import OperationFailed
from agent.gate import Limits
from agent.job import Done, Job
from agent.shelf import Shelf, not_installed
from agent.space import Space
from agent.threads import Threads
from contracts.messages import Command, Installed
from domain.operation import Kind, Phase, Reason


class Installer:
    """Fetch, verify, unpack beside the live version, swap. Until the swap the old version serves."""

    def __init__(
        self,
        shelf: Shelf,
        downloads: Downloads,
        changeover: Changeover,
        *,
        threads: Threads,
        space: Space,
        limits: Limits,
        at_once: int,
    ) -> None:
        self._shelf = shelf
        self._downloads = downloads
        self._changeover = changeover
        self._threads = threads
        self._space = space
        self._limits = limits
        self._slots = asyncio.Semaphore(at_once)

    async def perform(self, job: Job) -> Done:
        """Sent again after an interruption, the same plan is carried out: nothing is asked or decided anew."""
        if job.plan is not None and await self._changeover.can_resume(job, job.plan):
            await self._downloads.discard(job.command)  # what it brought lies beside the live version already
            return await self._changeover.carry_out(job)
        job.plan = None
        match job.command.kind:
            case Kind.INSTALL | Kind.UPGRADE:
                async with self._slots:
                    return await self._install(job)
            case Kind.ROLLBACK:
                job.gauge.move(Phase.SWAPPING)
                return await self._changeover.carry_out(job)
            case Kind.REMOVE:
                return await self._remove(job)
        raise OperationFailed(Reason.REFUSED_BY_NODE, f"This agent cannot do {job.command.kind}.")

    async def discard(self, command: Command) -> None:
        await self._downloads.discard(command)

    async def abandon(self, op_id: str) -> None:
        await self._changeover.abandon(op_id)

    async def list_backends(self) -> list[Installed]:
        return await asyncio.to_thread(self._shelf.everything)

    async def _install(self, job: Job) -> Done:
        command = job.command
        job.gauge.move(Phase.RESOLVING)
        before = await self._threads.run(job.halt, self._shelf.installed, command.family)
        if before is None and command.kind is Kind.UPGRADE:
            raise not_installed(command.family)
        if self._has(before, command, command.sha256):
            return await self._changeover.align(job, before)
        plan = await self._downloads.plan(command)
        if self._has(before, command, plan.digest):
            return await self._changeover.align(job, before)
        return await self._replace(job, plan, before)

    def _has(self, installed: Installed | None, command: Command, digest: str) -> bool:
        """Installed already, and fit to run."""
        if installed is None or command.force or not _is_same(installed, digest):
            return False
        return self._shelf.is_runnable(command.family)

    async def _replace(self, job: Job, plan: Plan, before: Installed | None) -> Done:
        """Unpacked while it comes; nobody sees it before its digest is right and all of it is on the disk."""
        command, run = job.command, self._threads.run
        try:
            async with self._downloads.fetched(job, plan, self._unpacking(job, plan)) as artifact:
                if self._has(before, command, artifact.digest):
                    return await self._changeover.align(job, before)
                staging = self._shelf.staging(command.family, command.op_id)
                await run(job.halt, self._shelf.seal, staging, command, artifact.digest, job.halt)
                job.gauge.move(Phase.SWAPPING)
                return await self._changeover.carry_out(job)
        finally:
            if job.plan is None:
                await run(job.halt, self._shelf.unstage, command.family, command.op_id)

    def _unpacking(self, job: Job, plan: Plan) -> Consume:
        """Into an empty folder each time: a download that begins anew is unpacked anew."""
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_soon_threadsafe(job.gauge.stir)

        def unpack(archives: list[OpenArchive]) -> None:
            staging = self._shelf.stage(job.command.family, job.command.op_id)
            unpacker = Unpacker(staging, self._limits, job.halt, tick, require_space=self._space.require)
            for archive in archives:
                (unpacker.unpack_layer if plan.is_image else unpacker.unpack)(archive)
            unpacker.finish()

        return unpack

    async def _remove(self, job: Job) -> Done:
        if not await self._threads.run(job.halt, self._shelf.is_there, job.command.family):
            return Done(changed=False)
        return await self._changeover.carry_out(job)


def _is_same(installed: Installed, digest: str) -> bool:
    wanted = digest.removeprefix("sha256:").lower()
    return bool(wanted) and installed.digest.removeprefix("sha256:") == wanted

"""Installing, upgrading and removing backends for real."""

import asyncio
from dataclasses import replace

from agent.archive import OpenArchive, Unpacker
from agent.changeover import Changed, Changeover
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
        match job.command.kind:
            case Kind.INSTALL | Kind.UPGRADE:
                async with self._slots:
                    return await self._install(job)
            case Kind.ROLLBACK:
                return await self._roll_back(job)
            case Kind.REMOVE:
                return await self._remove(job)
        raise OperationFailed(Reason.REFUSED_BY_NODE, f"This agent cannot do {job.command.kind}.")

    async def discard(self, command: Command) -> None:
        await self._downloads.discard(command)

    async def list_backends(self) -> list[Installed]:
        return await asyncio.to_thread(self._shelf.everything)

    async def _install(self, job: Job) -> Done:
        command = job.command
        job.gauge.move(Phase.RESOLVING)
        before = await self._threads.run(job.halt, self._shelf.installed, command.family)
        if before is None and command.kind is Kind.UPGRADE:
            raise not_installed(command.family)
        if self._has(before, command, command.sha256):
            return await self._unchanged(job, before)
        plan = await self._downloads.plan(command)
        if self._has(before, command, plan.digest):
            return await self._unchanged(job, before)
        return await self._replace(job, plan, before)

    async def _unchanged(self, job: Job, installed: Installed | None) -> Done:
        aligned = await self._changeover.align(job, installed)
        return Done(False, installed, installed, aligned.addresses, aligned.stopped)  # noqa: FBT003

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
                    return await self._unchanged(job, before)
                staging = self._shelf.staging(command.family, command.op_id)
                await run(job.halt, self._shelf.seal, staging, command, artifact.digest, job.halt)
                job.gauge.move(Phase.SWAPPING)
                job.commit()
                changed = await self._changeover.swap(job, lambda: self._shelf.put_live(command.family, staging))
        finally:
            await run(job.halt, self._shelf.unstage, command.family, command.op_id)
        if not self._space.has_headroom():
            await run(job.halt, self._shelf.forget_previous, command.family)
            changed = replace(changed, after=await run(job.halt, self._shelf.installed, command.family))
        return _done(before, changed)

    def _unpacking(self, job: Job, plan: Plan) -> Consume:
        """Into an empty folder each time: a download that begins anew is unpacked anew."""
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_soon_threadsafe(job.gauge.stir)

        def unpack(archives: list[OpenArchive]) -> None:
            staging = self._shelf.stage(job.command.family, job.command.op_id)
            unpacker = Unpacker(staging, self._limits, job.halt, tick)
            for archive in archives:
                (unpacker.unpack_layer if plan.is_image else unpacker.unpack)(archive)
            unpacker.finish()

        return unpack

    async def _roll_back(self, job: Job) -> Done:
        """Back to the version before, without a download."""
        family, run = job.command.family, self._threads.run
        job.gauge.move(Phase.SWAPPING)
        before = await run(job.halt, self._shelf.installed, family)
        await run(job.halt, self._shelf.require_previous, family)
        job.commit()
        return _done(before, await self._changeover.swap(job, lambda: self._shelf.roll_back(family)))

    async def _remove(self, job: Job) -> Done:
        family = job.command.family
        before = await self._threads.run(job.halt, self._shelf.installed, family)
        stopped = await self._changeover.stop_all(family)
        removed = await self._threads.run(job.halt, self._shelf.remove, family, job.command.op_id)
        return Done(changed=removed, before=before, stopped=stopped)


def _done(before: Installed | None, changed: Changed) -> Done:
    return Done(True, before, changed.after, changed.addresses, changed.stopped)  # noqa: FBT003


def _is_same(installed: Installed, digest: str) -> bool:
    wanted = digest.removeprefix("sha256:").lower()
    return bool(wanted) and installed.digest.removeprefix("sha256:") == wanted

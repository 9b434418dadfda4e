"""Runs downloads like a job, without the rest of the agent."""

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

import httpx2
import pytest

from nodesmith.agent.disk.space import Space
from nodesmith.agent.fetch.downloads import DownloadLimits, Downloads, Fetched
from nodesmith.agent.fetch.host_access import HostAccess
from nodesmith.agent.fetch.images import Images
from nodesmith.agent.fetch.sources import Sources, Timeouts
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Job
from nodesmith.agent.operations.progress import Gauge
from nodesmith.agent.threads import Threads
from nodesmith.contracts.agent_api import SourceAccess
from nodesmith.contracts.nats.messages import Command, Progress
from nodesmith.domain.source_policy import SourcePolicy
from nodesmith.gallery.oci import Platform
from tests.agent.archives import digest
from tests.sources import LOCAL

CONTENT = os.urandom(3_000_000)
AMD64 = Platform("linux", "amd64")


class Fetcher:
    """Fetches artifacts into a folder like a job."""

    def __init__(self, folder: Path, http: httpx2.AsyncClient, url: str) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.access: dict[str, SourceAccess] = {}
        self.ticks: list[Progress] = []
        self._http = http
        self._url = url
        self._threads = Threads()
        self.build()

    def build(
        self,
        *,
        headroom: int = 0,
        tries: int = 1,
        idle: float = 10.0,
        header: float = 10.0,
        bytes_a_second: int = 0,
        require_digest: bool = False,
        policy: SourcePolicy = LOCAL,
    ) -> None:
        timeouts = Timeouts(header, idle)
        self._hosts = HostAccess(self._ask, policy)
        self.downloads = Downloads(
            self.folder,
            Sources(self._http, self._url, lambda: "my-credential", self._hosts, timeouts, policy=policy),
            Images(self._hosts, timeouts, AMD64),
            threads=self._threads,
            space=Space(self.folder, headroom, 0.05),
            limits=DownloadLimits(idle, tries, bytes_a_second, require_digest),
        )
        self.downloads.prune()

    async def fetch(self, uri: str, *, sha256: str = "", size: int = 0, mirrors: list[str] | None = None) -> Job:
        """Fetch a plain archive with the shared content."""

        def check(artifact: Fetched) -> None:
            assert artifact.files[0].read_bytes() == CONTENT
            assert artifact.digest == digest(CONTENT)

        return await self.run(Command(op_id="op", uri=uri, sha256=sha256, size=size, mirrors=mirrors or []), check)

    async def run(self, command: Command, check) -> Job:
        job = Job(command, Gauge(command, self._note, every=0))
        try:
            plan = await self.downloads.plan(command)
            async with self.downloads.fetched(job, plan) as artifact:
                await asyncio.to_thread(check, artifact)
        finally:
            await job.gauge.close()
        return job

    def kept(self) -> int:
        """Return the size of the kept partial download."""
        return sum(path.stat().st_size for path in self.folder.glob("*.part"))

    async def close(self) -> None:
        await self._hosts.close()
        self._threads.close()

    async def _note(self, progress: Progress) -> None:
        self.ticks.append(progress)

    async def _ask(self, host: str) -> SourceAccess | None:
        self.asked.append(host)
        return self.access.get(host)


async def failure_of(work: Awaitable[object]) -> OperationFailed:
    with pytest.raises(OperationFailed) as failure:
        await work
    return failure.value

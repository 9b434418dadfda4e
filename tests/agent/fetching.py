"""Downloads as a job makes them, without the rest of the agent."""

import asyncio
import os
from collections.abc import Awaitable
from pathlib import Path

import httpx2
import pytest

from agent.downloads import Downloads, Fetched, Limits
from agent.failures import OperationFailed
from agent.images import Images
from agent.job import Job
from agent.progress import Gauge
from agent.sources import Sources, Timeouts
from agent.space import Space
from agent.threads import Threads
from agent.ways import Ways
from contracts.messages import Command, Progress
from contracts.sources import SourceAccess
from gallery.oci import Platform
from tests.agent.archives import digest

CONTENT = os.urandom(3_000_000)
AMD64 = Platform("linux", "amd64")


class Fetcher:
    """Fetches into a folder as a job would."""

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
    ) -> None:
        timeouts = Timeouts(header, idle)
        ways = Ways(self._http, self._ask)
        self.downloads = Downloads(
            self.folder,
            Sources(self._http, self._url, lambda: "my-credential", ways, timeouts),
            Images(ways, timeouts, AMD64),
            threads=self._threads,
            space=Space(self.folder, headroom, 0.05),
            limits=Limits(idle, tries, bytes_a_second, require_digest),
        )
        self.downloads.tidy()

    async def fetch(self, uri: str, *, sha256: str = "", size: int = 0, mirrors: list[str] | None = None) -> Job:
        """A plain archive with the content that all tests use."""

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
        """How many bytes of a partial download are here."""
        return sum(path.stat().st_size for path in self.folder.glob("*.part"))

    def close(self) -> None:
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

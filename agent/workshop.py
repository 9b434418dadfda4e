"""Everything that changes this node, built once from the settings."""

import asyncio
from collections.abc import Callable

import httpx2
import structlog

from agent import archive, downloads
from agent.downloads import Downloads
from agent.images import Images, this_platform
from agent.installer import Installer
from agent.journal import DiskJournal
from agent.settings import AgentSettings
from agent.shelf import Shelf
from agent.sources import Sources, Timeouts
from agent.space import Space
from agent.threads import Threads
from agent.ways import ControlPlane, Ways
from contracts.messages import Outcome

log = structlog.stdlib.get_logger(__name__)

_TIDY_EVERY_S = 3600.0

Who = Callable[[], tuple[str, str]]
"""the node's id and its own credential, as they are now"""


class Workshop:
    """Journal, shelf, downloads and installer; whatever the control plane calls this node, they stay the same."""

    def __init__(self, settings: AgentSettings, http: httpx2.AsyncClient, who: Who) -> None:
        home = settings.home
        self.journal = DiskJournal(home / "journal")
        self._threads = Threads()
        self._shelf = Shelf(home / "backends")
        space = Space(home, settings.disk_headroom, settings.disk_headroom_share)
        self._downloads = self._build_downloads(settings, http, who, space)
        limits = archive.Limits(members=settings.max_members, unpacked=settings.max_unpacked)
        self.installer = Installer(
            self._shelf, self._downloads, self._threads, space, limits, at_once=settings.parallel_operations
        )

    def take_stock(self) -> list[Outcome]:
        """What an earlier life of this agent left behind; it is reported, never resumed."""
        self._shelf.tidy()
        self._downloads.tidy()
        interrupted = self.journal.load()
        return [entry.outcome for entry in interrupted if entry.outcome is not None]

    async def keep_tidy(self) -> None:
        """For an agent that runs for months."""
        while True:
            await asyncio.sleep(_TIDY_EVERY_S)
            try:
                await asyncio.to_thread(self._downloads.tidy)
                await self.journal.reap()
            except OSError:
                log.exception("tidy.failed")

    def close(self) -> None:
        self.journal.close()
        self._threads.close()

    def _build_downloads(self, settings: AgentSettings, http: httpx2.AsyncClient, who: Who, space: Space) -> Downloads:
        timeouts = Timeouts(settings.header_timeout.total_seconds(), settings.idle_timeout.total_seconds())
        ways = Ways(http, ControlPlane(http, who).access)
        limits = downloads.Limits(
            idle=timeouts.idle,
            tries=settings.source_tries,
            bytes_a_second=settings.bandwidth_limit,
            require_digest=settings.require_digest,
        )
        return Downloads(
            settings.home / "downloads",
            Sources(http, settings.url, lambda: who()[1], ways, timeouts),
            Images(ways, timeouts, this_platform()),
            threads=self._threads,
            space=space,
            limits=limits,
        )

"""Everything that changes this node, built once from the settings."""

import asyncio
import itertools
import zlib
from collections.abc import Callable

import httpx2
import structlog

from agent import downloads, gate
from agent.changeover import Changeover
from agent.downloads import Downloads
from agent.durable import Disk
from agent.images import Images, this_platform
from agent.installer import Installer
from agent.journal import DiskJournal
from agent.memory import give_back
from agent.models import Models
from agent.ports import Ports
from agent.recovery import Recovery
from agent.reserve import Reserve, VitalDisk
from agent.running_set import RunningSet
from agent.settings import AgentSettings
from agent.shelf import Shelf
from agent.sources import Sources, Timeouts
from agent.space import Space
from agent.supervisor import Rules, Supervisor
from agent.threads import Threads
from agent.ways import ControlPlane, Ways
from contracts.messages import Outcome

log = structlog.stdlib.get_logger(__name__)

_LOGS_EVERY_S = 5.0
_TIDY_EVERY = 720
"""so many times that, which is an hour"""

Who = Callable[[], tuple[str, str]]
"""the node's id and its own credential, as they are now"""


class Workshop:
    """Journal, shelf, downloads and installer; whatever the control plane calls this node, they stay the same."""

    def __init__(self, settings: AgentSettings, http: httpx2.AsyncClient, who: Who, disk: Disk | None = None) -> None:
        home, disk = settings.home, disk or Disk()
        self._reserve = Reserve(home)
        vital = VitalDisk(disk, self._reserve)
        self.journal = DiskJournal(home / "journal", vital)
        self._threads = Threads()
        self._shelf = Shelf(home / "backends", disk, vital)
        space = Space(home, settings.disk_headroom, settings.disk_headroom_share)
        self._downloads = self._build_downloads(settings, http, who, space)
        limits = gate.Limits(members=settings.max_members, unpacked=settings.max_unpacked)
        rules = _rules(settings, vital)
        self.supervisor = self._build_supervisor(settings, rules)
        grace = settings.stop_grace.total_seconds()
        running = RunningSet(self.supervisor, grace=grace)
        self.installer = Installer(
            self._shelf,
            self._downloads,
            Changeover(self._shelf, running, self.journal, threads=self._threads, space=space),
            threads=self._threads,
            space=space,
            limits=limits,
            at_once=settings.parallel_operations,
        )
        self.models = Models(self.supervisor, home, settings.log_limit)
        self._recovery = Recovery(self.journal, self._shelf, rules.files(), space=space, grace=grace)
        self._keep_backends = settings.keep_backends
        self._grace = grace

    async def take_stock(self) -> list[Outcome]:
        """What an earlier life of this agent left: plans are settled, processes found again, leftovers removed."""
        await asyncio.to_thread(self._reserve.make)
        outcomes = await self._recovery.run()
        await self.supervisor.adopt()
        await asyncio.to_thread(self._tidy)
        return outcomes

    def _tidy(self) -> None:
        self._shelf.tidy(self.journal.plans())
        self._downloads.tidy()
        self._reserve.make()

    async def keep_tidy(self) -> None:
        """For an agent that runs for months."""
        for number in itertools.count(1):
            await asyncio.sleep(_LOGS_EVERY_S)
            try:
                await asyncio.to_thread(self.supervisor.turn_logs)
                await asyncio.to_thread(give_back)
                await asyncio.to_thread(self._reserve.make)
                if number % _TIDY_EVERY == 0:
                    await asyncio.to_thread(self._downloads.tidy)
                    await self.journal.reap()
            except OSError:
                log.exception("tidy.failed")

    async def stop_backends(self) -> None:
        await self.supervisor.stop(self.supervisor.everything(), self._grace)

    async def close(self) -> None:
        """The backends go on, unless the settings say otherwise."""
        if not self._keep_backends:
            await self.stop_backends()
        self.supervisor.let_go()
        self.journal.close()
        self._threads.close()

    def _build_supervisor(self, settings: AgentSettings, rules: Rules) -> Supervisor:
        begin = zlib.crc32(str(settings.home.absolute()).encode())
        ports = Ports(settings.backend_host, settings.backend_first_port, settings.backend_last_port, begin=begin)
        return Supervisor(rules, ports, self._shelf.live)

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


def _rules(settings: AgentSettings, disk: Disk) -> Rules:
    return Rules(
        home=settings.home,
        host=settings.backend_host,
        health_timeout=settings.health_timeout.total_seconds(),
        log_limit=settings.log_limit,
        disk=disk,
    )

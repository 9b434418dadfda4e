"""Builds every component that changes this node, once, from the settings."""

import asyncio
import itertools
import zlib
from collections.abc import Callable

import httpx2
import structlog

from nodesmith.agent.disk import archive_policy
from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.disk.installed_backends import InstalledBackends
from nodesmith.agent.disk.reserve import Reserve, ReservedDisk
from nodesmith.agent.disk.space import Space
from nodesmith.agent.fetch import downloads
from nodesmith.agent.fetch.downloads import Downloads
from nodesmith.agent.fetch.host_access import ControlPlane, HostAccess
from nodesmith.agent.fetch.images import Images, this_platform
from nodesmith.agent.fetch.model_files import ModelFiles
from nodesmith.agent.fetch.sources import Sources, Timeouts
from nodesmith.agent.forward.certificate import NodeCertificate
from nodesmith.agent.forward.forwarding import Forwarding
from nodesmith.agent.forward.program import ForwarderRules
from nodesmith.agent.memory import release_memory
from nodesmith.agent.operations.family_locks import FamilyLocks
from nodesmith.agent.operations.installer import Installer
from nodesmith.agent.operations.journal import DiskJournal
from nodesmith.agent.operations.recovery import Recovery
from nodesmith.agent.operations.replica_switch import ReplicaSwitch
from nodesmith.agent.operations.version_switch import VersionSwitch
from nodesmith.agent.run.accounts import account_of
from nodesmith.agent.run.backend_processes import RunningProcesses
from nodesmith.agent.run.confinement import Confinement
from nodesmith.agent.run.replica_reports import ReplicaReporter
from nodesmith.agent.run.running_models import AgentModels
from nodesmith.agent.run.supervisor import Supervisor, SupervisorRules
from nodesmith.agent.run.tcp_ports import Ports
from nodesmith.agent.settings import AgentSettings
from nodesmith.agent.threads import Threads
from nodesmith.contracts.nats.messages import Outcome
from nodesmith.contracts.nats.presence import BackendConfinement
from nodesmith.runtime.tls_trust import trusting

log = structlog.stdlib.get_logger(__name__)

_LOGS_EVERY_S = 5.0
_PRUNE_EVERY = 720
"""housekeeping rounds between two prunings: one hour"""

NodeCredentials = Callable[[], tuple[str, str]]
"""returns the node's current id and API token"""


class AgentAssembly:
    """Journal, installed backends, downloads and installer: kept when the control plane assigns another node id."""

    def __init__(
        self, settings: AgentSettings, http: httpx2.AsyncClient, credentials: NodeCredentials, disk: Disk | None = None
    ) -> None:
        home, disk = settings.home, disk or Disk()
        self._reserve = Reserve(home)
        reserved_disk = ReservedDisk(disk, self._reserve)
        self.journal = DiskJournal(home / "journal", reserved_disk)
        self._threads = Threads()
        self._backends = InstalledBackends(home / "backends", disk, reserved_disk)
        space = Space(home, settings.disk_headroom, settings.disk_headroom_share)
        self._downloads = self._build_downloads(settings, http, credentials, space)
        limits = archive_policy.ArchiveLimits(members=settings.max_members, unpacked=settings.max_unpacked)
        self._confinement = _confinement(settings)
        self.confined: BackendConfinement | None = None
        """how far backends are confined on this machine; None until `recover` has run"""
        rules = _rules(settings, self._confinement, reserved_disk)
        self.supervisor = self._build_supervisor(settings, rules)
        grace = settings.stop_grace.total_seconds()
        self.certificate = NodeCertificate(home / "forward") if settings.forwarder else None
        self.forwarding = self._build_forwarding(settings, credentials)
        running = RunningProcesses(self.supervisor, grace=grace, reachable=self.forwarding)
        locks = FamilyLocks()
        self.replicas = ReplicaReporter(self.supervisor, self.forwarding)
        self._files = self._build_files(settings, disk, space)
        self._loader = ReplicaSwitch(
            self._backends,
            running,
            self._files,
            self.journal,
            locks=locks,
            reporter=self.replicas,
            threads=self._threads,
        )
        self.installer = Installer(
            self._backends,
            self._downloads,
            VersionSwitch(self._backends, running, self.journal, locks, threads=self._threads, space=space),
            self._loader,
            threads=self._threads,
            space=space,
            limits=limits,
            at_once=settings.parallel_operations,
        )
        space.on_short.append(lambda: self._files.prune(self._loader.loads(), at_once=True))
        self.models = AgentModels(self.supervisor, home, settings.log_limit)
        self._recovery = Recovery(self.journal, self._backends, rules.process_records(), space=space, grace=grace)
        self._keep_backends = settings.keep_backends
        self._grace = grace

    async def recover(self) -> list[Outcome]:
        """After a restart: settle interrupted plans, adopt running processes, remove leftovers; return the outcomes."""
        await asyncio.to_thread(self._reserve.ensure)
        await asyncio.to_thread(self._confine)
        outcomes = await self._recovery.run()
        await self.supervisor.adopt()
        if self.forwarding is not None:
            await self.forwarding.begin()
        await asyncio.to_thread(self._remove_leftovers)
        return outcomes

    def _confine(self) -> None:
        self._confinement.prepare()
        self.confined = self._confinement.summary()
        if gaps := self.confined.missing:
            log.warning("confinement.incomplete", backends_can_reach=gaps, see="docs/explanation/security.md")

    def _remove_leftovers(self) -> None:
        self._backends.remove_leftovers(self.journal.plans())
        self._confinement.prune_scratch(self._backends.names())
        self._downloads.prune()
        self._files.prune(self._loader.loads())
        self._reserve.ensure()

    async def run_housekeeping(self) -> None:
        """Rotate logs, release memory and prune old files, so that the agent can run for months."""
        for number in itertools.count(1):
            await asyncio.sleep(_LOGS_EVERY_S)
            try:
                await asyncio.to_thread(self.supervisor.rotate_logs)
                await asyncio.to_thread(release_memory)
                await asyncio.to_thread(self._reserve.ensure)
                if number % _PRUNE_EVERY == 0:
                    await asyncio.to_thread(self._downloads.prune)
                    await asyncio.to_thread(self._files.prune, self._loader.loads())
                    await asyncio.to_thread(lambda: self._confinement.prune_scratch(self._backends.names()))
                    await self.journal.prune()
            except OSError:
                log.exception("housekeeping.failed")

    async def stop_backends(self) -> None:
        await self.supervisor.stop(self.supervisor.everything(), self._grace)
        if self.forwarding is not None:
            await self.forwarding.stop()

    async def close(self) -> None:
        """Close all components; backends and forwarder keep running unless `keep_backends` is off."""
        if self.forwarding is not None:
            self.forwarding.detach()
        if not self._keep_backends:
            await self.stop_backends()
        self.supervisor.detach()
        await self._hosts.close()
        self.journal.close()
        self._threads.close()

    def _build_files(self, settings: AgentSettings, disk: Disk, space: Space) -> ModelFiles:
        return ModelFiles(
            settings.home / "model-files",
            self._downloads,
            disk=disk,
            threads=self._threads,
            space=space,
            kept_s=settings.model_files_kept.total_seconds(),
        )

    def _build_forwarding(self, settings: AgentSettings, credentials: NodeCredentials) -> Forwarding | None:
        if self.certificate is None:
            return None
        rules = ForwarderRules(
            home=settings.home,
            control_plane=settings.url,
            host=settings.forward_host,
            listen=settings.forward_listen,
            first_port=settings.forward_first_port,
            last_port=settings.forward_last_port,
            log_limit=settings.log_limit,
        )
        return Forwarding(rules, self.certificate, self.supervisor, lambda: credentials()[0])

    def _build_supervisor(self, settings: AgentSettings, rules: SupervisorRules) -> Supervisor:
        begin = zlib.crc32(str(settings.home.absolute()).encode())
        ports = Ports(settings.backend_host, settings.backend_first_port, settings.backend_last_port, begin=begin)
        return Supervisor(rules, ports, self._backends.live)

    def _build_downloads(
        self, settings: AgentSettings, http: httpx2.AsyncClient, credentials: NodeCredentials, space: Space
    ) -> Downloads:
        timeouts = Timeouts(settings.header_timeout.total_seconds(), settings.idle_timeout.total_seconds())
        policy = settings.sources()
        self._hosts = HostAccess(ControlPlane(http, credentials).access, policy, trusting(settings.ca_file))
        limits = downloads.DownloadLimits(
            idle=timeouts.idle,
            tries=settings.source_tries,
            bytes_a_second=settings.bandwidth_limit,
            require_digest=settings.require_digest,
        )
        return Downloads(
            settings.home / "downloads",
            Sources(http, settings.url, lambda: credentials()[1], self._hosts, timeouts, policy=policy),
            Images(self._hosts, timeouts, this_platform()),
            threads=self._threads,
            space=space,
            limits=limits,
        )


def _confinement(settings: AgentSettings) -> Confinement:
    return Confinement(
        home=settings.home,
        mode=settings.backend_confinement,
        account=account_of(settings.backend_user),
        read=settings.backend_read,
        write=settings.backend_write,
        hidden=settings.backend_hidden,
        variables=settings.backend_environment,
    )


def _rules(settings: AgentSettings, confinement: Confinement, disk: Disk) -> SupervisorRules:
    return SupervisorRules(
        home=settings.home,
        host=settings.backend_host,
        health_timeout=settings.health_timeout.total_seconds(),
        log_limit=settings.log_limit,
        confinement=confinement,
        disk=disk,
    )

"""The agent: registered, linked, beating, and at work when asked."""

import asyncio
import uuid
from importlib import metadata

import httpx2
import structlog

from agent import archive, downloads
from agent.desk import Desk
from agent.downloads import Downloads
from agent.identity import Identity, IdentityFile
from agent.installer import Installer
from agent.journal import DiskJournal
from agent.machine import machine_id, resources
from agent.operations import Operations
from agent.racing import first_of, unless
from agent.registration import Registrar
from agent.settings import AgentSettings
from agent.shelf import Shelf
from agent.sources import Sources
from agent.threads import Threads
from bus.commands import serve
from bus.connection import Bus, node_bus
from bus.heartbeats import keep_beating
from bus.reports import NodeReports
from contracts.http import RegisterRequest
from contracts.messages import Heartbeat, Outcome
from domain.node import Protocol

log = structlog.stdlib.get_logger(__name__)


class Agent:
    """One node. Everything that lasts lies in its home."""

    def __init__(self, settings: AgentSettings, http: httpx2.AsyncClient) -> None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings = settings
        self._boot_id = uuid.uuid4().hex
        self._machine_id = machine_id(settings.home)
        self._journal = DiskJournal(settings.home / "journal")
        self._threads = Threads()
        self._registrar = Registrar(
            http, IdentityFile(settings.home), token=settings.registration_token(), request=self._registration
        )
        self._shelf = Shelf(settings.home / "backends")
        self._downloads = self._build_downloads(http)
        limits = archive.Limits(members=settings.max_members, unpacked=settings.max_unpacked)
        self._installer = Installer(self._shelf, self._downloads, self._threads, limits)
        self._beats = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. A control plane that knows us under another id from now on gets a new link."""
        interrupted = await asyncio.to_thread(self._take_stock)
        try:
            while not stop.is_set():
                admitted = await unless(stop, self._registrar.admitted())
                if admitted is not None:
                    identity, is_fresh = admitted
                    await self._serve_as(identity, interrupted, stop, is_fresh=is_fresh)
                    interrupted = []
        finally:
            self._journal.close()
            self._threads.close()

    async def _serve_as(
        self, identity: Identity, interrupted: list[Outcome], stop: asyncio.Event, *, is_fresh: bool
    ) -> None:
        """Linked as this node until `stop`, or until we are another one."""
        bus = node_bus(identity.nats_url, identity.node_id, self._registrar.nats_credential)
        operations = Operations(
            self._journal,
            self._installer,
            NodeReports(bus, identity.node_id),
            progress_every=self._settings.progress_interval.total_seconds(),
        )
        await serve(bus, identity.node_id, Desk(operations, self._installer, stop))
        bus.start()
        for outcome in interrupted:
            operations.say(outcome)
        try:
            await self._attend(bus, identity, operations, stop, is_fresh=is_fresh)
        finally:
            await operations.close()
            await bus.close()

    async def _attend(
        self, bus: Bus, identity: Identity, operations: Operations, stop: asyncio.Event, *, is_fresh: bool
    ) -> None:
        """Heartbeats and renewals, until `stop` or another id; a loop that breaks ends the agent."""

        async def beat() -> Heartbeat:
            return await self._heartbeat(identity.node_id, operations)

        await first_of(
            stop.wait(),
            keep_beating(bus, beat, every=self._settings.heartbeat_interval.total_seconds()),
            self._registrar.keep_linked(bus, at_once=not is_fresh),
        )

    def _take_stock(self) -> list[Outcome]:
        """What an earlier life of this agent left behind; it is reported, never resumed."""
        self._shelf.tidy()
        self._downloads.tidy()
        interrupted = self._journal.load()
        return [entry.outcome for entry in interrupted if entry.outcome is not None]

    def _build_downloads(self, http: httpx2.AsyncClient) -> Downloads:
        settings = self._settings
        sources = Sources(http, settings.url, self._credential, idle_timeout=settings.idle_timeout.total_seconds())
        limits = downloads.Limits(headroom=settings.disk_headroom, patience=settings.source_patience.total_seconds())
        return Downloads(settings.home / "downloads", sources, self._threads, limits)

    def _credential(self) -> str:
        return self._registrar.identity.api_token if self._registrar.identity else ""

    def _registration(self) -> RegisterRequest:
        has = resources(self._settings.home)
        return RegisterRequest(
            **has.model_dump(exclude_none=True),
            name=self._settings.name,
            protocol=Protocol.NODESMITH,
            machine_id=self._machine_id,
            boot_id=self._boot_id,
            agent_version=metadata.version("nodesmith"),
        )

    async def _heartbeat(self, node_id: str, operations: Operations) -> Heartbeat:
        self._beats += 1
        return Heartbeat(
            node_id=node_id,
            boot_id=self._boot_id,
            seq=self._beats,
            open_ops=operations.open_ops(),
            resources=await asyncio.to_thread(resources, self._settings.home),
        )

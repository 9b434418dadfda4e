"""The agent process: registers, connects to NATS, sends heartbeats and serves commands."""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib import metadata

import httpx2
import structlog

from nodesmith.agent.assembly import AgentAssembly
from nodesmith.agent.first_ended import run_unless, run_until_first
from nodesmith.agent.link.handlers import AgentHandlers, SignedModelHandlers
from nodesmith.agent.link.node_identity import Identity, IdentityFile
from nodesmith.agent.link.pinned_trust import PinFile, PinnedTrust
from nodesmith.agent.link.registration import Registrar, Removed
from nodesmith.agent.link.retirement import Retired, Retirement
from nodesmith.agent.link.trust_watch import TrustWatch
from nodesmith.agent.machine import machine_id, resources
from nodesmith.agent.operations.commands import NodeOperations
from nodesmith.agent.operations.order_checks import OrderVerifier
from nodesmith.agent.operations.used_requests import UsedRequests
from nodesmith.agent.settings import AgentSettings
from nodesmith.bus.commands import serve
from nodesmith.bus.connection import Bus, node_bus
from nodesmith.bus.heartbeats import send_heartbeats, watch_for_duplicates
from nodesmith.bus.presence import answer_presence, subscribe_trust_list
from nodesmith.bus.reports import NodeReports
from nodesmith.bus.running_models import serve_models
from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.nats.messages import Outcome
from nodesmith.contracts.nats.presence import Heartbeat, StopOrder
from nodesmith.domain.node import Protocol
from nodesmith.runtime.tls_trust import trusting

log = structlog.stdlib.get_logger(__name__)

LISTEN_HEARTBEATS = (1.2, 2.2)
"""range of heartbeat intervals to listen for another process before starting without the control plane"""

_FORWARDING_S = 2.0
"""how long a heartbeat waits until gateways reach the replicas that it reports"""


class Agent:
    """One node; all persistent state is in its home folder."""

    def __init__(self, settings: AgentSettings, http: httpx2.AsyncClient) -> None:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings = settings
        self._boot_id = uuid.uuid4().hex
        self._machine_id = machine_id(settings.home)
        self._retirement = Retirement(settings.home)
        self._trust = PinnedTrust(http, PinFile(settings.home), expected=settings.expected_trust())
        self._used_requests = UsedRequests(settings.home / "requests.json")
        self._watch = TrustWatch(self._trust, every_s=settings.trust_interval.total_seconds())
        self._assembly = AgentAssembly(settings, http, self._credentials)
        self._registrar = Registrar(
            http,
            IdentityFile(settings.home),
            token=settings.registration_token(),
            request=self._registration,
            trust=self._trust,
            raise_floors=self._assembly.journal.raise_floors,
            certificate=self._assembly.certificate,
            on_certificate=self._wake_forwarding,
        )
        self._beats = 0
        self._news = asyncio.Event()
        """set when a replica gets ready or ends: the next heartbeat is sent at once"""
        self._assembly.supervisor.on_change = self._replicas_changed

    def _replicas_changed(self) -> None:
        self._wake_forwarding()
        self._news.set()

    def _wake_forwarding(self) -> None:
        if self._assembly.forwarding is not None:
            self._assembly.forwarding.wake()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop`. A removed node stays up idle, so that no service manager restarts it in a loop."""
        interrupted = await self._assembly.recover()
        self._trust.note_iat(self._assembly.journal.newest_of_all())
        try:
            if (retired := self._retirement.load()) is None:
                retired = await self._run_registered(interrupted, stop)
            if retired is not None:
                self._retirement.log_status(retired)
                await stop.wait()
        finally:
            await self._assembly.close()

    async def _run_registered(self, interrupted: list[Outcome], stop: asyncio.Event) -> Retired | None:
        """Register and serve, repeatedly, until `stop` or until an admin removed this node."""
        admission = self._registrar.admit
        while not stop.is_set():
            try:
                admitted = await run_unless(stop, admission())
                if admitted is None:
                    break
                await self._serve_as(admitted[0], interrupted, stop, is_fresh=admitted[1])
            except Removed as removed:
                log.warning("registration.removed", error=str(removed))
                await self._assembly.stop_backends()
                self._registrar.forget()
                return self._retirement.record(removed.why)
            interrupted, admission = [], self._register_again
        await self._registrar.deregister(self._boot_id)
        return None

    async def _register_again(self) -> tuple[Identity, bool]:
        """Wait for the control plane: the stored identity alone is no longer sufficient."""
        return await self._registrar.register_until_admitted(), True

    async def _serve_as(
        self, identity: Identity, interrupted: list[Outcome], stop: asyncio.Event, *, is_fresh: bool
    ) -> None:
        """Serve as this node until `stop`, or until the control plane no longer accepts this identity."""
        stop_ordered = asyncio.Event()
        rival = asyncio.Event()
        bus = node_bus(
            identity.nats_url, identity.node_id, self._registrar.nats_credential, tls=trusting(self._settings.ca_file)
        )
        operations = NodeOperations(
            self._assembly.journal,
            self._assembly.installer,
            NodeReports(bus, identity.node_id),
            progress_every=self._settings.progress_interval.total_seconds(),
            journal_every=self._settings.journal_interval.total_seconds(),
        )
        models = self._assembly.models
        try:
            if not is_fresh and not await run_unless(stop, self._may_begin(bus, identity, rival)):
                return
            installer = self._assembly.installer
            checks = OrderVerifier(
                identity.node_id, self._trust, operations, installer.current_digest, self._used_requests
            )
            handlers = AgentHandlers(checks, operations, installer, models, self._receiver(stop_ordered))
            await serve(bus, identity.node_id, handlers)
            await serve_models(bus, identity.node_id, SignedModelHandlers(models, checks))
            await answer_presence(bus, identity.node_id, self._boot_id)
            await subscribe_trust_list(bus, identity.node_id, self._watch.notify)
            if is_fresh:
                bus.start()
            for outcome in interrupted:
                operations.report(outcome)
            replaced = run_until_first(rival.wait(), self._check_stop_orders(identity, stop_ordered))
            await self._run_loops(bus, identity, operations, replaced, stop, is_fresh=is_fresh)
        finally:
            await operations.close()
            await bus.close()

    async def _may_begin(self, bus: Bus, identity: Identity, rival: asyncio.Event) -> bool:
        """Check that no other process runs as this node while the control plane cannot be asked.

        The process that already sends heartbeats wins. Of two copies that start together, the one that listens longer
        hears the other; if both begin at the same moment, the one with the greater boot id stops.
        """
        other_heard, is_listening = asyncio.Event(), True

        def on_other_boot(other: str) -> None:
            if is_listening:
                other_heard.set()
                return
            is_confirmed = self._registrar.identity is not identity
            if other < self._boot_id and not is_confirmed and not rival.is_set():
                log.warning("agent.stepped_aside", node_id=identity.node_id)
                rival.set()

        await watch_for_duplicates(bus, identity.node_id, self._boot_id, on_other_boot)
        bus.start()
        confirming = asyncio.ensure_future(self._registrar.wait_for_confirmation())
        await run_until_first(self._listen(bus), other_heard.wait(), confirming)
        is_listening = False
        if other_heard.is_set():
            log.warning("agent.other_process_active", node_id=identity.node_id)
            return False
        return confirming.cancelled() or (confirming.result() and self._credentials()[0] == identity.node_id)

    async def _listen(self, bus: Bus) -> None:
        await bus.wait_up()
        every = self._settings.heartbeat_interval.total_seconds()
        await asyncio.sleep(every * random.uniform(*LISTEN_HEARTBEATS))  # noqa: S311 - jitter, no secret

    async def _run_loops(
        self,
        bus: Bus,
        identity: Identity,
        operations: NodeOperations,
        replaced: Awaitable[None],
        stop: asyncio.Event,
        *,
        is_fresh: bool,
    ) -> None:
        """Run the background loops until `stop`, a refusal or a new node id; a loop that fails ends the agent."""

        async def beat() -> Heartbeat:
            return await self._heartbeat(identity.node_id, operations)

        await run_until_first(
            stop.wait(),
            replaced,
            send_heartbeats(bus, beat, every=self._settings.heartbeat_interval.total_seconds(), news=self._news),
            self._registrar.keep_credential_valid(bus, at_once=not is_fresh),
            self._assembly.run_housekeeping(),
            self._watch.run(),
        )

    def _receiver(self, stop_ordered: asyncio.Event) -> Callable[[StopOrder], None]:
        """Return a handler that notes a stop order for this process; any number of them counts as one."""

        def receive(order: StopOrder) -> None:
            if order.boot_id in ("", self._boot_id) and not stop_ordered.is_set():
                log.warning("stop.requested", why=order.why)
                stop_ordered.set()

        return receive

    async def _check_stop_orders(self, identity: Identity, stop_ordered: asyncio.Event) -> None:
        """After a stop order, ask the control plane, because anyone who controls NATS can send one.

        Work continues meanwhile. Raises `Removed`; returns when the control plane no longer accepts this identity.
        """
        while True:
            await stop_ordered.wait()
            stop_ordered.clear()
            if not await self._registrar.is_still_registered_as(identity):
                return

    def _credentials(self) -> tuple[str, str]:
        identity = self._registrar.identity
        return (identity.node_id, identity.api_token) if identity else ("", "")

    def _registration(self) -> RegisterRequest:
        measured = resources(self._settings.home)
        return RegisterRequest(
            **measured.model_dump(exclude_none=True),
            name=self._settings.name,
            protocol=Protocol.NODESMITH,
            machine_id=self._machine_id,
            boot_id=self._boot_id,
            agent_version=metadata.version("nodesmith"),
            confinement=self._assembly.confined,
        )

    async def _heartbeat(self, node_id: str, operations: NodeOperations) -> Heartbeat:
        self._beats += 1
        measured = await asyncio.to_thread(resources, self._settings.home)
        if self._assembly.forwarding is not None:
            await self._assembly.forwarding.sync(within=_FORWARDING_S)
        number, replicas = self._assembly.replicas.next()
        return Heartbeat(
            node_id=node_id,
            boot_id=self._boot_id,
            seq=self._beats,
            at=datetime.now(UTC),
            open_ops=operations.open_ops(),
            trust_version=self._trust.version,
            resources=measured,
            number=number,
            replicas=replicas,
        )

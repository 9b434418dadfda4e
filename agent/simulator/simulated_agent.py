"""Simulated nodes: the real protocol and operation handling, without a disk."""

import asyncio
import random
import ssl
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
import structlog

from nodesmith.agent.first_ended import run_until_first
from nodesmith.agent.link.identity import Identity
from nodesmith.agent.link.registration import Registrar
from nodesmith.agent.link.trust import PinnedTrust
from nodesmith.agent.link.trust_watch import TrustWatch
from nodesmith.agent.operations.commands import NodeOperations
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Done, Job
from nodesmith.agent.operations.journal import MemoryJournal
from nodesmith.agent.operations.order_checks import OrderRefused, OrderVerifier, refusal
from nodesmith.agent.simulator.simulated_replicas import SimulatedReplicas
from nodesmith.bus.commands import serve
from nodesmith.bus.connection import Bus, node_bus
from nodesmith.bus.heartbeats import send_heartbeats
from nodesmith.bus.presence import answer_presence, subscribe_trust_list
from nodesmith.bus.reports import NodeReports
from nodesmith.contracts.http.nodes import RegisterRequest
from nodesmith.contracts.nats.messages import (
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Installed,
    OpQuestion,
    OpReply,
    Outcome,
    Progress,
    Result,
)
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.contracts.nats.presence import Heartbeat, Resources, StopOrder
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import Phase, Reason

log = structlog.stdlib.get_logger(__name__)

PROGRESS_S = 1.0
PING_S = 60
TRUST_S = 900.0
_GIB = 1024**3
SIMULATED_RESOURCES = Resources(
    total_ram=64 * _GIB, available_ram=48 * _GIB, total_disk=1024 * _GIB, available_disk=512 * _GIB
)


@dataclass(frozen=True)
class SimulatedBehaviour:
    """How long an install takes, how large it is, how often it fails, and the latency of replies."""

    install_seconds: float
    size: int
    fail_rate: float
    latency_s: float
    heartbeat_s: float
    load_seconds: float = 2.0
    """until a model is ready"""
    tls: ssl.SSLContext | None = None


@dataclass
class SimulationTotals:
    """Totals of all nodes."""

    nodes: int
    linked: int = 0
    begun: int = 0
    removed: int = 0
    ended: dict[Result, int] = field(default_factory=dict)
    all_linked: asyncio.Event = field(default_factory=asyncio.Event)

    def link(self) -> None:
        self.linked += 1
        if self.linked == self.nodes:
            self.all_linked.set()

    def count(self, result: Result) -> None:
        self.ended[result] = self.ended.get(result, 0) + 1

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {result}" for result, count in sorted(self.ended.items())) or "none ended"
        removed = f", {self.removed} of them removed" if self.removed else ""
        return f"{self.linked} of {self.nodes} nodes linked{removed}, {self.begun} operations begun: {ends}"


class InMemoryIdentity:
    """Stores the identity in memory only."""

    def __init__(self) -> None:
        self._identity: Identity | None = None

    def load(self) -> Identity | None:
        return self._identity

    def save(self, identity: Identity) -> None:
        self._identity = identity

    def forget(self) -> None:
        self._identity = None


class SimulatedInstaller:
    """Simulates installs with progress and random failures, and remembers what is installed."""

    def __init__(self, behaviour: SimulatedBehaviour) -> None:
        self._behaviour = behaviour
        self._installed: dict[str, Installed] = {}
        self._previous: dict[str, Installed] = {}
        self.replicas = SimulatedReplicas(behaviour.load_seconds)

    async def perform(self, job: Job) -> Done:
        command = job.command
        before = self._installed.get(command.family)
        if command.kind.rules.locks_replica:
            return await self.replicas.perform(job, before)
        if command.kind is Kind.REMOVE:
            self._installed.pop(command.family, None)
            self._previous.pop(command.family, None)
            stopped = self.replicas.stop_all(command.family)
            return Done(changed=before is not None, before=before, stopped=stopped)
        if before is None and command.kind.rules.needs_installed:
            raise OperationFailed(Reason.NOT_INSTALLED, f"{command.family} is not installed on this node.")
        if command.kind is Kind.ROLLBACK:
            return self._roll_back(job, before)
        if before is not None and before.digest == command.sha256 and not command.force:
            return Done(changed=False, before=before, after=before)
        await self._simulate_install(job)
        job.commit()
        return self._record(before, self._new(command))

    def _roll_back(self, job: Job, before: Installed | None) -> Done:
        previous = self._previous.get(job.command.family)
        if previous is None:
            raise OperationFailed(Reason.NO_PREVIOUS_VERSION, "Only one version is on this node.")
        job.commit()
        return self._record(before, previous)

    def _record(self, before: Installed | None, after: Installed) -> Done:
        if before is not None:
            self._previous[after.family] = before
            after = after.model_copy(update={"previous_version": before.version, "previous_digest": before.digest})
        self._installed[after.family] = after
        return Done(changed=True, before=before, after=after)

    def _new(self, command: Command) -> Installed:
        return Installed(
            name=command.backend,
            family=command.family,
            version=command.version,
            digest=command.sha256,
            installed_at=datetime.now(UTC),
        )

    async def discard(self, _command: Command) -> None:
        """No downloads are kept."""

    async def abandon(self, _op_id: str) -> None:
        """No plans are kept."""

    async def current_digest(self, family: str) -> str:
        installed = self._installed.get(family)
        return installed.digest if installed is not None else ""

    def everything(self) -> list[Installed]:
        return list(self._installed.values())

    async def _simulate_install(self, job: Job) -> None:
        size = self._behaviour.size
        steps = max(1, round(self._behaviour.install_seconds / PROGRESS_S))
        fails_at = random.randrange(steps) if random.random() < self._behaviour.fail_rate else None  # noqa: S311
        job.gauge.move(Phase.DOWNLOADING, 0, size)
        for step in range(steps):
            await asyncio.sleep(self._behaviour.install_seconds / steps)
            if step == fails_at:
                raise OperationFailed(Reason.DOWNLOAD_FAILED, "simulated failure")
            job.bytes_fetched = size * (step + 1) // steps
            job.gauge.move(Phase.DOWNLOADING, job.bytes_fetched, size)


async def until_removed(registrar: Registrar, stop_ordered: asyncio.Event) -> None:
    """On each stop order, register again; raises `Removed` if an admin removed the node."""
    while True:
        await stop_ordered.wait()
        stop_ordered.clear()
        await registrar.register_until_admitted()


class SimulatedAgent:
    """An agent of protocol 2 without a disk."""

    def __init__(
        self,
        name: str,
        http: httpx2.AsyncClient,
        token: str,
        behaviour: SimulatedBehaviour,
        *,
        totals: SimulationTotals,
        trust: PinnedTrust,
    ) -> None:
        self.name = name
        self._trust = trust
        self._watch = TrustWatch(trust, every_s=TRUST_S)
        self._orders: OrderVerifier | None = None
        self._behaviour = behaviour
        self._totals = totals
        self._stop_ordered = asyncio.Event()
        self._boot_id = uuid.uuid4().hex
        self._installer = SimulatedInstaller(behaviour)
        self._beats = 0
        self._reports: NodeReports | None = None
        self._operations = NodeOperations(MemoryJournal(), self._installer, self, progress_every=PROGRESS_S)
        self.registrar = Registrar(http, InMemoryIdentity(), token=token, request=self._registration, trust=trust)

    async def run(self, identity: Identity) -> None:
        """Serve until cancelled; raises `Removed` when an admin removed the node."""
        bus = node_bus(
            identity.nats_url,
            identity.node_id,
            self.registrar.nats_credential,
            ping_interval=PING_S,
            tls=self._behaviour.tls,
        )
        self._reports = NodeReports(bus, identity.node_id)
        self._orders = OrderVerifier(identity.node_id, self._trust, self._operations, self._installer.current_digest)
        await serve(bus, identity.node_id, self)
        await answer_presence(bus, identity.node_id, self._boot_id)
        await subscribe_trust_list(bus, identity.node_id, self._watch.notify)
        bus.start()
        try:
            await bus.wait_up()
            self._totals.link()
            await run_until_first(
                self._send_heartbeats(bus, identity.node_id),
                self.registrar.keep_credential_valid(bus),
                self._watch.run(),
                until_removed(self.registrar, self._stop_ordered),
            )
        finally:
            await self._operations.close()
            await bus.close()

    # handlers -------------------------------------------------------------------------------------------------

    async def order(self, command: SignedCommand) -> CommandReply | None:
        """Verify and execute an order like a real agent."""
        await asyncio.sleep(self._behaviour.latency_s)
        if self._orders is None:
            return None
        try:
            verified = await self._orders.verify_command(command)
        except OrderRefused as why:
            return refusal(command, why)
        known = set(self._operations.open_ops())
        reply = await self._operations.command(verified)
        self._totals.begun += len(set(self._operations.open_ops()) - known)
        return reply

    async def cancel(self, command: CancelCommand) -> CancelReply:
        await asyncio.sleep(self._behaviour.latency_s)
        return await self._operations.cancel(command)

    async def ask(self, question: OpQuestion) -> OpReply:
        await asyncio.sleep(self._behaviour.latency_s)
        return await self._operations.ask(question)

    async def list_backends(self) -> BackendList:
        await asyncio.sleep(self._behaviour.latency_s)
        return BackendList(backends=self._installer.everything())

    async def stop_backend(self, command: Command) -> None:
        log.info("stop.nothing_runs", backend=command.backend)

    async def stop_node(self, order: StopOrder) -> None:
        log.info("stop.requested", node=self.name, why=order.why)
        self._stop_ordered.set()

    # reports --------------------------------------------------------------------------------------------------

    async def progress(self, progress: Progress) -> None:
        if self._reports is not None:
            await self._reports.progress(progress)

    async def outcome(self, outcome: Outcome) -> None:
        self._totals.count(outcome.result)
        if self._reports is not None:
            await self._reports.outcome(outcome)

    async def _send_heartbeats(self, bus: Bus, node_id: str) -> None:
        async def beat() -> Heartbeat:
            self._beats += 1
            number, replicas = self._installer.replicas.next_report()
            return Heartbeat(
                node_id=node_id,
                boot_id=self._boot_id,
                seq=self._beats,
                at=datetime.now(UTC),
                open_ops=self._operations.open_ops(),
                resources=SIMULATED_RESOURCES,
                trust_version=self._trust.version,
                number=number,
                replicas=replicas,
            )

        await send_heartbeats(bus, beat, every=self._behaviour.heartbeat_s)

    def _registration(self) -> RegisterRequest:
        return RegisterRequest(
            **SIMULATED_RESOURCES.model_dump(exclude_none=True),
            name=self.name,
            protocol=Protocol.NODESMITH,
            machine_id=f"simulated-{self.name}",
            boot_id=self._boot_id,
            agent_version="simulated",
        )

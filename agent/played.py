"""Nodes that are only played: the real wire and the real desk, but nothing touches a disk."""

import asyncio
import random
import ssl
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
import structlog

from agent.failures import OperationFailed
from agent.identity import Identity
from agent.job import Done, Job
from agent.journal import MemoryJournal
from agent.operations import Operations
from agent.racing import first_of
from agent.registration import Registrar
from bus.commands import serve
from bus.connection import Bus, node_bus
from bus.heartbeats import keep_beating
from bus.presence import answer_for
from bus.reports import NodeReports
from contracts.messages import (
    BackendList,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Heartbeat,
    Installed,
    OpQuestion,
    OpReply,
    Outcome,
    Progress,
    Resources,
    Result,
    StopOrder,
)
from contracts.node_http import RegisterRequest
from domain.node import Protocol
from domain.operation import Kind, Phase, Reason

log = structlog.stdlib.get_logger(__name__)

PROGRESS_S = 1.0
PING_S = 60
_GIB = 1024**3
PLAYED_RESOURCES = Resources(
    total_ram=64 * _GIB, available_ram=48 * _GIB, total_disk=1024 * _GIB, available_disk=512 * _GIB
)


@dataclass(frozen=True)
class Part:
    """What is played: how long an install takes, how large it is, how often it fails, how slow the answers are."""

    install_seconds: float
    size: int
    fail_rate: float
    latency_s: float
    heartbeat_s: float
    tls: ssl.SSLContext | None = None


@dataclass
class Totals:
    """What came of it, all nodes together."""

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


class KeptInMemory:
    """An identity that ends with the process."""

    def __init__(self) -> None:
        self._identity: Identity | None = None

    def load(self) -> Identity | None:
        return self._identity

    def save(self, identity: Identity) -> None:
        self._identity = identity

    def forget(self) -> None:
        self._identity = None


class PretendInstaller:
    """Takes its time, reports progress, fails now and then, and remembers what it has installed."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._installed: dict[str, Installed] = {}
        self._previous: dict[str, Installed] = {}

    async def perform(self, job: Job) -> Done:
        command = job.command
        before = self._installed.get(command.family)
        if command.kind is Kind.REMOVE:
            self._installed.pop(command.family, None)
            self._previous.pop(command.family, None)
            return Done(changed=before is not None, before=before)
        if before is None and command.kind is not Kind.INSTALL:
            raise OperationFailed(Reason.NOT_INSTALLED, f"{command.family} is not installed on this node.")
        if command.kind is Kind.ROLLBACK:
            return self._roll_back(job, before)
        if before is not None and before.digest == command.sha256 and not command.force:
            return Done(changed=False, before=before, after=before)
        await self._pretend(job)
        job.commit()
        return self._put(before, self._new(command))

    def _roll_back(self, job: Job, before: Installed | None) -> Done:
        previous = self._previous.get(job.command.family)
        if previous is None:
            raise OperationFailed(Reason.NO_PREVIOUS_VERSION, "Only one version is on this node.")
        job.commit()
        return self._put(before, previous)

    def _put(self, before: Installed | None, after: Installed) -> Done:
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
        """Nothing is kept."""

    async def abandon(self, _op_id: str) -> None:
        """Nothing is left in the middle."""

    def everything(self) -> list[Installed]:
        return list(self._installed.values())

    async def _pretend(self, job: Job) -> None:
        size = self._part.size
        steps = max(1, round(self._part.install_seconds / PROGRESS_S))
        fails_at = random.randrange(steps) if random.random() < self._part.fail_rate else None  # noqa: S311
        job.gauge.move(Phase.DOWNLOADING, 0, size)
        for step in range(steps):
            await asyncio.sleep(self._part.install_seconds / steps)
            if step == fails_at:
                raise OperationFailed(Reason.DOWNLOAD_FAILED, "simulated failure")
            job.bytes_fetched = size * (step + 1) // steps
            job.gauge.move(Phase.DOWNLOADING, job.bytes_fetched, size)


async def until_removed(registrar: Registrar, doubt: asyncio.Event) -> None:
    """An order to stop is only a reason to ask the control plane: it raises `Removed` if the node is."""
    while True:
        await doubt.wait()
        doubt.clear()
        await registrar.ask_until_admitted()


class PlayedAgent:
    """One agent of protocol 2 without a disk."""

    def __init__(self, name: str, http: httpx2.AsyncClient, token: str, part: Part, totals: Totals) -> None:
        self.name = name
        self._part = part
        self._totals = totals
        self._doubt = asyncio.Event()
        self._boot_id = uuid.uuid4().hex
        self._installer = PretendInstaller(part)
        self._beats = 0
        self._reports: NodeReports | None = None
        self._operations = Operations(MemoryJournal(), self._installer, self, progress_every=PROGRESS_S)
        self.registrar = Registrar(http, KeptInMemory(), token=token, request=self._registration)

    async def live(self, identity: Identity) -> None:
        """Linked until cancelled; `Removed` when the control plane says so."""
        bus = node_bus(
            identity.nats_url,
            identity.node_id,
            self.registrar.nats_credential,
            ping_interval=PING_S,
            tls=self._part.tls,
        )
        self._reports = NodeReports(bus, identity.node_id)
        await serve(bus, identity.node_id, self)
        await answer_for(bus, identity.node_id, self._boot_id)
        bus.start()
        try:
            await bus.wait_up()
            self._totals.link()
            await first_of(
                self._beat(bus, identity.node_id),
                self.registrar.keep_linked(bus),
                until_removed(self.registrar, self._doubt),
            )
        finally:
            await self._operations.close()
            await bus.close()

    # what it answers on the bus -------------------------------------------------------------------------------

    async def command(self, command: Command) -> CommandReply | None:
        await asyncio.sleep(self._part.latency_s)
        known = set(self._operations.open_ops())
        reply = await self._operations.command(command)
        self._totals.begun += len(set(self._operations.open_ops()) - known)
        return reply

    async def cancel(self, command: CancelCommand) -> CancelReply:
        await asyncio.sleep(self._part.latency_s)
        return await self._operations.cancel(command)

    async def ask(self, question: OpQuestion) -> OpReply:
        await asyncio.sleep(self._part.latency_s)
        return await self._operations.ask(question)

    async def list_backends(self) -> BackendList:
        await asyncio.sleep(self._part.latency_s)
        return BackendList(backends=self._installer.everything())

    async def stop_backend(self, command: Command) -> None:
        log.info("stop.nothing_runs", backend=command.backend)

    async def stop_node(self, order: StopOrder) -> None:
        log.info("stop.asked", node=self.name, why=order.why)
        self._doubt.set()

    # what it reports ------------------------------------------------------------------------------------------

    async def progress(self, progress: Progress) -> None:
        if self._reports is not None:
            await self._reports.progress(progress)

    async def outcome(self, outcome: Outcome) -> None:
        self._totals.count(outcome.result)
        if self._reports is not None:
            await self._reports.outcome(outcome)

    async def _beat(self, bus: Bus, node_id: str) -> None:
        async def beat() -> Heartbeat:
            self._beats += 1
            return Heartbeat(
                node_id=node_id,
                boot_id=self._boot_id,
                seq=self._beats,
                open_ops=self._operations.open_ops(),
                resources=PLAYED_RESOURCES,
            )

        await keep_beating(bus, beat, every=self._part.heartbeat_s)

    def _registration(self) -> RegisterRequest:
        return RegisterRequest(
            **PLAYED_RESOURCES.model_dump(exclude_none=True),
            name=self.name,
            protocol=Protocol.NODESMITH,
            machine_id=f"simulated-{self.name}",
            boot_id=self._boot_id,
            agent_version="simulated",
        )

"""A simulated LocalAI worker, protocol 1: one long request, HTTP heartbeats, no cancel."""

import asyncio
from collections import defaultdict

import httpx2
import structlog

from nodesmith.agent.first_ended import run_until_first
from nodesmith.agent.link.node_identity import Identity
from nodesmith.agent.link.registration import Registrar
from nodesmith.agent.operations.failures import OperationFailed
from nodesmith.agent.operations.job import Job
from nodesmith.agent.operations.progress import Gauge
from nodesmith.agent.simulator.simulated_agent import (
    PING_S,
    PROGRESS_S,
    SIMULATED_RESOURCES,
    InMemoryIdentity,
    SimulatedBehaviour,
    SimulatedInstaller,
    SimulationTotals,
    until_removed,
)
from nodesmith.bus.commands import serve_localai
from nodesmith.bus.connection import Bus, node_bus
from nodesmith.bus.reports import NodeReports
from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.nats.messages import BackendList, Command, CommandReply, Progress, Result
from nodesmith.contracts.nats.presence import StopOrder
from nodesmith.domain.kinds import Kind

log = structlog.stdlib.get_logger(__name__)

_ADDRESS = "127.0.0.1:50051"
_AS_LOCALAI_SENDS_IT = {"op_id", "backend", "file_name", "current", "total", "percentage", "phase"}


class SimulatedLocalAIWorker:
    """Replies when the work is done. A repeated install waits for the first one, then finds it installed."""

    def __init__(
        self, name: str, http: httpx2.AsyncClient, token: str, behaviour: SimulatedBehaviour, totals: SimulationTotals
    ) -> None:
        self.name = name
        self._http = http
        self._token = token
        self._behaviour = behaviour
        self._totals = totals
        self._stop_ordered = asyncio.Event()
        self._installer = SimulatedInstaller(behaviour)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._reports: NodeReports | None = None
        self.registrar = Registrar(http, InMemoryIdentity(), token=token, request=self._registration)

    async def run(self, identity: Identity) -> None:
        """Serve until cancelled; raises `Removed` when an admin removed the node."""
        bus = node_bus(
            identity.nats_url,
            identity.node_id,
            self.registrar.nats_credential,
            signs=False,
            ping_interval=PING_S,
            tls=self._behaviour.tls,
        )
        self._reports = NodeReports(bus, identity.node_id)
        await serve_localai(bus, identity.node_id, self)
        bus.start()
        try:
            await bus.wait_up()
            self._totals.link()
            await run_until_first(
                self._keep_beating(bus, identity.node_id),
                self.registrar.keep_credential_valid(bus),
                until_removed(self.registrar, self._stop_ordered),
            )
        finally:
            await bus.close()

    # handlers -------------------------------------------------------------------------------------------------

    async def command(self, command: Command) -> CommandReply:
        await asyncio.sleep(self._behaviour.latency_s)
        force = command.force or command.kind is Kind.UPGRADE
        request = command.model_copy(update={"family": command.backend, "sha256": "", "force": force})
        async with self._locks[command.backend]:
            return await self._perform(request)

    async def list_backends(self) -> BackendList:
        await asyncio.sleep(self._behaviour.latency_s)
        return BackendList(backends=self._installer.everything())

    async def stop_backend(self, command: Command) -> None:
        log.info("stop.nothing_runs", backend=command.backend)

    async def stop_node(self, order: StopOrder) -> None:
        log.info("stop.requested", node=self.name, why=order.why)
        self._stop_ordered.set()

    async def _perform(self, command: Command) -> CommandReply:
        self._totals.begun += 1
        gauge = Gauge(command, self._progress, every=PROGRESS_S)
        try:
            await self._installer.perform(Job(command, gauge))
        except OperationFailed as why:
            self._totals.count(Result.FAILED)
            return CommandReply(error=str(why))
        finally:
            await gauge.close()
        self._totals.count(Result.SUCCEEDED)
        return CommandReply(success=True, address=_ADDRESS)

    async def _progress(self, progress: Progress) -> None:
        if self._reports is not None and progress.op_id:
            await self._reports.progress(Progress(**progress.model_dump(include=_AS_LOCALAI_SENDS_IT)))

    # HTTP -----------------------------------------------------------------------------------------------------

    async def _keep_beating(self, bus: Bus, node_id: str) -> None:
        """Send HTTP heartbeats as LocalAI does: not while NATS is down, and without checking the response."""
        headers = {"Authorization": f"Bearer {self._token}"}
        body = SIMULATED_RESOURCES.model_dump(exclude_none=True)
        while True:
            await bus.wait_up()
            try:
                await self._http.post(f"/api/node/{node_id}/heartbeat", json=body, headers=headers)
            except httpx2.HTTPError as error:
                log.debug("heartbeat.lost", node=self.name, error=repr(error))
            await asyncio.sleep(self._behaviour.heartbeat_s)

    def _registration(self) -> RegisterRequest:
        return RegisterRequest(
            **SIMULATED_RESOURCES.model_dump(exclude_none=True),
            name=self.name,
            address=_ADDRESS,
            http_address="127.0.0.1:50050",
            labels={"node.replica-slots": "1"},
            token=self._token,
        )

"""A played LocalAI worker, protocol 1: one long request, HTTP heartbeats, and nothing that cancels."""

import asyncio
from collections import defaultdict

import httpx2
import structlog

from agent.failures import OperationFailed
from agent.identity import Identity
from agent.job import Job
from agent.played import (
    PING_S,
    PLAYED_RESOURCES,
    PROGRESS_S,
    KeptInMemory,
    Part,
    PretendInstaller,
    Totals,
    until_removed,
)
from agent.progress import Gauge
from agent.racing import first_of
from agent.registration import Registrar
from bus.commands import serve_localai
from bus.connection import Bus, node_bus
from bus.reports import NodeReports
from contracts.messages import BackendList, Command, CommandReply, Progress, Result, StopOrder
from contracts.node_http import RegisterRequest
from domain.operation import Kind

log = structlog.stdlib.get_logger(__name__)

_ADDRESS = "127.0.0.1:50051"
_AS_LOCALAI_SENDS_IT = {"op_id", "backend", "file_name", "current", "total", "percentage", "phase"}


class PlayedLocalAIWorker:
    """Answers at the end of the work. A repeated install waits for the first one, then finds it done."""

    def __init__(self, name: str, http: httpx2.AsyncClient, token: str, part: Part, totals: Totals) -> None:
        self.name = name
        self._http = http
        self._token = token
        self._part = part
        self._totals = totals
        self._doubt = asyncio.Event()
        self._installer = PretendInstaller(part)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._reports: NodeReports | None = None
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
        await serve_localai(bus, identity.node_id, self)
        bus.start()
        try:
            await bus.wait_up()
            self._totals.link()
            await first_of(
                self._keep_beating(bus, identity.node_id),
                self.registrar.keep_linked(bus),
                until_removed(self.registrar, self._doubt),
            )
        finally:
            await bus.close()

    # what it answers on the bus -------------------------------------------------------------------------------

    async def command(self, command: Command) -> CommandReply:
        await asyncio.sleep(self._part.latency_s)
        again = command.force or command.kind is Kind.UPGRADE
        asked = command.model_copy(update={"family": command.backend, "sha256": "", "force": again})
        async with self._locks[command.backend]:
            return await self._perform(asked)

    async def list_backends(self) -> BackendList:
        await asyncio.sleep(self._part.latency_s)
        return BackendList(backends=self._installer.everything())

    async def stop_backend(self, command: Command) -> None:
        log.info("stop.nothing_runs", backend=command.backend)

    async def stop_node(self, order: StopOrder) -> None:
        log.info("stop.asked", node=self.name, why=order.why)
        self._doubt.set()

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

    # what it says over HTTP -----------------------------------------------------------------------------------

    async def _keep_beating(self, bus: Bus, node_id: str) -> None:
        """Skipped while NATS is away; the answer is not looked at, as LocalAI does it."""
        headers = {"Authorization": f"Bearer {self._token}"}
        body = PLAYED_RESOURCES.model_dump(exclude_none=True)
        while True:
            await bus.wait_up()
            try:
                await self._http.post(f"/api/node/{node_id}/heartbeat", json=body, headers=headers)
            except httpx2.HTTPError as error:
                log.debug("heartbeat.lost", node=self.name, error=repr(error))
            await asyncio.sleep(self._part.heartbeat_s)

    def _registration(self) -> RegisterRequest:
        return RegisterRequest(
            **PLAYED_RESOURCES.model_dump(exclude_none=True),
            name=self.name,
            address=_ADDRESS,
            http_address="127.0.0.1:50050",
            labels={"node.replica-slots": "1"},
            token=self._token,
        )

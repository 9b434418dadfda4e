"""The simulator: one process plays many nodes on the real wire, each with its own credential and connection."""

import asyncio
import resource
import ssl
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
import structlog

from agent.identity import Identity
from agent.played import Part, PlayedAgent, Totals
from agent.played_localai import PlayedLocalAIWorker
from agent.racing import first_of
from agent.registration import ASK_AGAIN_S, CredentialRefused, NotRegistered, Removed
from domain.node import Protocol
from runtime.proxies import api_client
from runtime.trust import trusting

log = structlog.stdlib.get_logger(__name__)

_REGISTER_AT_ONCE = 16
_SPARE_FILES = 256


@dataclass(frozen=True)
class SimulationOptions:
    """`nodesmith simulate`; `latency` is in milliseconds. Without an admin token somebody else approves the nodes."""

    url: str
    registration_token: str
    admin_token: str = ""
    nodes: int = 10
    install_seconds: float = 5.0
    size: int = 100_000_000
    fail_rate: float = 0.0
    latency: float = 0.0
    protocol: int = Protocol.NODESMITH
    name_prefix: str = "sim"
    ca_file: Path | None = None
    """trusted beside the system's authorities"""
    heartbeat_interval: float = 10.0


async def run_simulation(options: SimulationOptions, stop: asyncio.Event) -> Totals:
    """Play until `stop`; says when all nodes are linked, and what came of it at the end."""
    _allow_open_files(options.nodes)
    totals = Totals(options.nodes)
    limits = httpx2.Limits(max_connections=_REGISTER_AT_ONCE * 2, max_keepalive_connections=_REGISTER_AT_ONCE)
    tls = trusting(options.ca_file)
    async with api_client(options.url, verify=tls, timeout=30.0, limits=limits) as http:
        simulation = _Simulation(options, http, totals, tls)
        await simulation.run(stop)
    _say(f"simulation over: {totals}")
    return totals


class _Simulation:
    def __init__(
        self, options: SimulationOptions, http: httpx2.AsyncClient, totals: Totals, tls: ssl.SSLContext
    ) -> None:
        self._options = options
        self._tls = tls
        self._http = http
        self._totals = totals
        self._gate = asyncio.Semaphore(_REGISTER_AT_ONCE)
        self._began = time.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        telling = asyncio.create_task(self._tell_when_linked())
        try:
            await first_of(stop.wait(), self._play_all())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            telling.cancel()

    def _cast(self) -> list[PlayedAgent | PlayedLocalAIWorker]:
        options = self._options
        part = Part(
            install_seconds=options.install_seconds,
            size=options.size,
            fail_rate=options.fail_rate,
            latency_s=options.latency / 1000,
            tls=self._tls,
            heartbeat_s=options.heartbeat_interval,
        )
        kind = PlayedLocalAIWorker if options.protocol == Protocol.LOCALAI else PlayedAgent
        names = [f"{options.name_prefix}-{number}" for number in range(1, options.nodes + 1)]
        return [kind(name, self._http, options.registration_token, part, self._totals) for name in names]

    async def _play_all(self) -> None:
        """Until the last one has ended; an error of one ends all."""
        async with asyncio.TaskGroup() as playing:
            for node in self._cast():
                playing.create_task(self._play(node))

    async def _play(self, node: PlayedAgent | PlayedLocalAIWorker) -> None:
        """Until it is removed. One that the control plane knows under another id by now goes on as that one."""
        try:
            while True:
                await node.live(await self._admit(node))
        except Removed:
            self._totals.removed += 1
            _say(f"{node.name} was removed")

    async def _admit(self, node: PlayedAgent | PlayedLocalAIWorker) -> Identity:
        """Register a few at a time, and approve if we may; else wait until somebody does."""
        while True:
            async with self._gate:
                identity = await self._ask(node)
            if identity is not None and identity.nats_jwt:
                return identity
            await asyncio.sleep(ASK_AGAIN_S)

    async def _ask(self, node: PlayedAgent | PlayedLocalAIWorker) -> Identity | None:
        try:
            identity = await node.registrar.ask_once()
            if not identity.nats_jwt and self._options.admin_token:
                await self._approve(identity.node_id)
                identity = await node.registrar.ask_once()
        except (CredentialRefused, Removed):
            raise
        except (NotRegistered, httpx2.HTTPError) as error:
            log.debug("simulation.not_registered_yet", error=str(error))
            return None
        return identity

    async def _approve(self, node_id: str) -> None:
        headers = {"Authorization": f"Bearer {self._options.admin_token}"}
        response = await self._http.post(f"/api/nodes/{node_id}/approve", headers=headers)
        response.raise_for_status()

    async def _tell_when_linked(self) -> None:
        await self._totals.all_linked.wait()
        _say(f"{self._totals.linked} nodes linked after {time.monotonic() - self._began:.1f} s")


def _allow_open_files(nodes: int) -> None:
    """Each node is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nodes + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("simulation.too_few_files", wanted=wanted, allowed=hard)
        wanted = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

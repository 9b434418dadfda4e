"""The simulator: one process runs many nodes over the real protocol, each with its own credential and connection."""

import asyncio
import resource
import ssl
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2
import structlog

from nodesmith.agent.first_ended import run_until_first
from nodesmith.agent.link.identity import Identity
from nodesmith.agent.link.registration import APPROVAL_POLL_S, CredentialRefused, NotRegistered, Removed
from nodesmith.agent.link.trust import PinInMemory, PinnedTrust
from nodesmith.agent.simulator.simulated_agent import SimulatedAgent, SimulatedBehaviour, SimulationTotals
from nodesmith.agent.simulator.simulated_localai import SimulatedLocalAIWorker
from nodesmith.domain.node import Protocol
from nodesmith.runtime.proxies import api_client
from nodesmith.runtime.tls_trust import trusting

log = structlog.stdlib.get_logger(__name__)

_REGISTER_AT_ONCE = 16
_SPARE_FILES = 256


@dataclass(frozen=True)
class SimulationOptions:
    """Options of `nodesmith simulate`; `latency` is in milliseconds. Without an admin token nodes await approval."""

    url: str
    registration_token: str
    admin_token: str = ""
    nodes: int = 10
    install_seconds: float = 5.0
    load_seconds: float = 2.0
    size: int = 100_000_000
    fail_rate: float = 0.0
    latency: float = 0.0
    protocol: int = Protocol.NODESMITH
    name_prefix: str = "sim"
    ca_file: Path | None = None
    """trusted in addition to the system's CAs"""
    heartbeat_interval: float = 10.0


async def run_simulation(options: SimulationOptions, stop: asyncio.Event) -> SimulationTotals:
    """Simulate until `stop`; prints when all nodes are connected, and the totals at the end."""
    _allow_open_files(options.nodes)
    totals = SimulationTotals(options.nodes)
    limits = httpx2.Limits(max_connections=_REGISTER_AT_ONCE * 2, max_keepalive_connections=_REGISTER_AT_ONCE)
    tls = trusting(options.ca_file)
    async with api_client(options.url, verify=tls, timeout=30.0, limits=limits) as http:
        simulation = _Simulation(options, http, totals, tls)
        await simulation.run(stop)
    _print(f"simulation over: {totals}")
    return totals


class _Simulation:
    def __init__(
        self, options: SimulationOptions, http: httpx2.AsyncClient, totals: SimulationTotals, tls: ssl.SSLContext
    ) -> None:
        self._options = options
        self._tls = tls
        self._http = http
        self._totals = totals
        self._registration_slots = asyncio.Semaphore(_REGISTER_AT_ONCE)
        self._began = time.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        announcing = asyncio.create_task(self._announce_linked())
        try:
            await run_until_first(stop.wait(), self._run_all())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            announcing.cancel()

    def _build_nodes(self) -> list[SimulatedAgent | SimulatedLocalAIWorker]:
        options = self._options
        behaviour = SimulatedBehaviour(
            install_seconds=options.install_seconds,
            load_seconds=options.load_seconds,
            size=options.size,
            fail_rate=options.fail_rate,
            latency_s=options.latency / 1000,
            tls=self._tls,
            heartbeat_s=options.heartbeat_interval,
        )
        names = [f"{options.name_prefix}-{number}" for number in range(1, options.nodes + 1)]
        http, token, totals = self._http, options.registration_token, self._totals
        if options.protocol == Protocol.LOCALAI:
            return [SimulatedLocalAIWorker(name, http, token, behaviour, totals) for name in names]
        trust = PinnedTrust(http, PinInMemory())
        return [SimulatedAgent(name, http, token, behaviour, totals=totals, trust=trust) for name in names]

    async def _run_all(self) -> None:
        """Run all nodes; an error of one ends all."""
        async with asyncio.TaskGroup() as group:
            for node in self._build_nodes():
                group.create_task(self._run_node(node))

    async def _run_node(self, node: SimulatedAgent | SimulatedLocalAIWorker) -> None:
        """Run a node until it is removed; when its node id changes, continue under the new id."""
        try:
            while True:
                await node.run(await self._admit(node))
        except Removed:
            self._totals.removed += 1
            _print(f"{node.name} was removed")

    async def _admit(self, node: SimulatedAgent | SimulatedLocalAIWorker) -> Identity:
        """Register a few nodes at a time, and approve them with the admin token; without it, wait for approval."""
        while True:
            async with self._registration_slots:
                identity = await self._register(node)
            if identity is not None and identity.nats_jwt:
                return identity
            await asyncio.sleep(APPROVAL_POLL_S)

    async def _register(self, node: SimulatedAgent | SimulatedLocalAIWorker) -> Identity | None:
        try:
            identity = await node.registrar.register_once()
            if not identity.nats_jwt and self._options.admin_token:
                await self._approve(identity.node_id)
                identity = await node.registrar.register_once()
        except (CredentialRefused, Removed):
            raise
        except (NotRegistered, httpx2.HTTPError) as error:
            log.debug("simulation.not_registered_yet", error=str(error))
            return None
        return identity

    async def _approve(self, node_id: str) -> None:
        headers = {"Authorization": f"Bearer {self._options.admin_token}"}
        response = await self._http.post(f"/api/v1/nodes/{node_id}/approve", headers=headers)
        response.raise_for_status()

    async def _announce_linked(self) -> None:
        await self._totals.all_linked.wait()
        _print(f"{self._totals.linked} nodes linked after {time.monotonic() - self._began:.1f} s")


def _allow_open_files(nodes: int) -> None:
    """Raise the limit of open files, because each node needs a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = nodes + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("simulation.too_few_files", wanted=wanted, allowed=hard)
        wanted = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

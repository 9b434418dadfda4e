"""The real process on PostgreSQL: routes, keys and counts come from the store; real backends; kill -9."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.access import Role
from nodesmith.domain.deployment import Deployment
from nodesmith.domain.node import Node
from nodesmith.domain.token_hash import hash_token
from nodesmith.runtime.gateway_settings import GatewaySettings
from nodesmith.store.access.tokens import Tokens
from nodesmith.store.database import Database
from nodesmith.store.models.holds import Holds
from nodesmith.store.nodes.nodes import Nodes
from tests.agent.forward.nodes import free_port
from tests.databases import migrated_template, opened
from tests.deadlines import HANGS_S
from tests.gateway.backends import echo_lm
from tests.servers import PostgresForTests
from tests.store.fleet import registered
from tests.store.models import Stage

KEY = "nstok-of-a-client"
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "A node"}], "max_tokens": 8}


@dataclass
class GatewayProcess:
    process: subprocess.Popen[bytes]
    url: str

    async def chat(self, client: httpx2.AsyncClient, key: str = KEY) -> httpx2.Response:
        return await client.post(
            f"{self.url}/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {key}"}
        )


@pytest.fixture(scope="module")
async def database(postgres_server: PostgresForTests) -> AsyncIterator[Database]:
    url = await postgres_server.create_database(template=await migrated_template(postgres_server))
    async with opened(url) as database:
        yield database


def now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def gateway(database: Database, *, wait: str = "60s") -> AsyncIterator[GatewayProcess]:
    port = free_port()
    settings = {"DATABASE_URL": database.conninfo, "GATEWAY_PORT": str(port), "GATEWAY_WAIT": wait}
    environment = {**os.environ, **{f"NODESMITH_{name}": value for name, value in settings.items()}}
    argv = [sys.executable, "-P", "-m", "nodesmith.gateway.main"]
    process = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    running = GatewayProcess(process, f"http://127.0.0.1:{port}")
    try:
        await _ready(running)
        yield running
    finally:
        process.kill()
        process.wait()


async def _ready(running: GatewayProcess) -> None:
    async with asyncio.timeout(HANGS_S), httpx2.AsyncClient(trust_env=False) as client:
        while True:
            try:
                if (await client.get(f"{running.url}/readyz")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.05)


@dataclass
class Fleet:
    """One node with two replicas of one model, which are real processes."""

    stage: Stage
    nodes: Nodes
    node: Node
    model: Deployment
    holds: Holds

    async def load(self, address: str) -> str:
        placed = await self.stage.place(self.model, self.node)
        assert placed is not None
        assert await self.stage.replicas.loaded(placed.op_id, address, 1)
        return placed.id

    async def in_flight(self) -> dict[str, int]:
        return {each.id: each.in_flight for each in await self.stage.of_node(self.node.id)}


@pytest.fixture
async def fleet(database: Database) -> AsyncIterator[Fleet]:
    stage, nodes = Stage(database, now), Nodes(database, clock=now)
    await stage.empty()
    node = await registered(nodes, max_replicas_per_model=4, total_vram=2**34, available_vram=2**34)
    model = await stage.deploy()
    found = Fleet(stage, nodes, node, model, Holds(database, clock=now))
    beating = asyncio.create_task(beat(nodes, node))
    await nodes.touch_listening(now())
    await nodes.heartbeats([Heartbeat(node_id=node.id)], now())
    tokens = Tokens(database)
    if not await tokens.find("client"):
        await tokens.create("client", Role.CLIENT, token_hash=hash_token(KEY), created_by="test", expires_at=None)
    yield found
    beating.cancel()


async def beat(nodes: Nodes, node: Node) -> None:
    while True:
        await nodes.touch_listening(now())
        await nodes.heartbeats([Heartbeat(node_id=node.id)], now())
        await asyncio.sleep(5)


async def test_gateway_serves_what_the_store_says(database: Database, fleet: Fleet, tmp_path: Path) -> None:
    """A call for a model without replicas waits, is noted for the scheduler, and is served when one is loaded."""
    async with echo_lm(tmp_path) as backend, gateway(database) as running, client() as http:
        call = asyncio.create_task(running.chat(http))
        async with asyncio.timeout(HANGS_S):
            while (known := await fleet.stage.deployments.find("llama")) is None or known.wanted_at is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        loaded = await fleet.load(backend.address)
        answer = await call
        assert (answer.status_code, answer.headers["x-nodesmith-replica"]) == (200, loaded)
        assert (await running.chat(http, key="wrong")).status_code == 401
        models = await http.get(f"{running.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        assert [entry["id"] for entry in models.json()["data"]] == ["llama"]


async def test_open_calls_are_counted_and_a_killed_gateway_is_forgotten(
    database: Database, fleet: Fleet, tmp_path: Path
) -> None:
    async with echo_lm(tmp_path, "--token-ms", "500") as slow, gateway(database) as running, client() as http:
        loaded = await fleet.load(slow.address)
        calls = [asyncio.create_task(running.chat(http)) for _ in range(3)]
        async with asyncio.timeout(HANGS_S):
            while await fleet.in_flight() != {loaded: 3}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        running.process.kill()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, httpx2.HTTPError) for each in done)
        async with asyncio.timeout(HANGS_S):
            while await fleet.in_flight() != {loaded: 0}:
                await fleet.holds.delete_silent()
                await asyncio.sleep(0.2)


async def test_stopped_gateway_finishes_its_calls_and_gives_its_counts_back(
    database: Database, fleet: Fleet, tmp_path: Path
) -> None:
    async with echo_lm(tmp_path, "--token-ms", "100") as slow, gateway(database) as running, client() as http:
        loaded = await fleet.load(slow.address)
        call = asyncio.create_task(running.chat(http))
        async with asyncio.timeout(HANGS_S):
            while await fleet.in_flight() != {loaded: 1}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        running.process.send_signal(signal.SIGTERM)
        assert (await call).status_code == 200
        assert await asyncio.to_thread(running.process.wait, HANGS_S) == 0
        assert await fleet.in_flight() == {loaded: 0}


async def test_client_with_two_gateways_sees_no_error_when_one_is_killed(
    database: Database, fleet: Fleet, tmp_path: Path
) -> None:
    """A client that tries its second gateway when the first does not answer loses nothing."""
    async with (
        echo_lm(tmp_path, "--token-ms", "1") as backend,
        gateway(database) as one,
        gateway(database) as other,
        client() as http,
    ):
        await fleet.load(backend.address)
        statuses: list[int] = []
        stop = asyncio.Event()

        async def call() -> None:
            while not stop.is_set():
                try:
                    statuses.append((await one.chat(http)).status_code)
                except httpx2.HTTPError:
                    statuses.append((await other.chat(http)).status_code)

        calls = [asyncio.create_task(call()) for _ in range(8)]
        async with asyncio.timeout(HANGS_S):
            while len(statuses) < 50:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            one.process.kill()
            before = len(statuses)
            while len(statuses) < before + 50:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        stop.set()
        await asyncio.gather(*calls)
        assert set(statuses) == {200}


async def test_gateway_that_cannot_listen_says_why(database: Database) -> None:
    async with gateway(database) as running:
        port = running.url.rpartition(":")[2]
        environment = {**os.environ, "NODESMITH_GATEWAY_PORT": port}
        argv = [sys.executable, "-P", "-m", "nodesmith.gateway.main"]
        second = await asyncio.create_subprocess_exec(*argv, env=environment, stderr=subprocess.PIPE)
        _, said = await second.communicate()
    assert second.returncode == 1
    assert b"nodesmith gateway cannot start" in said


def test_every_default_of_the_gateway_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("NODESMITH_"):
            monkeypatch.delenv(name)
    found = json.loads(GatewaySettings().model_dump_json(exclude_none=True))
    assert found == {
        "database_url": "postgresql://nodesmith@127.0.0.1:15432/nodesmith",
        "log_level": "INFO",
        "listen_host": "",
        "trusted_proxies": "",
        "max_connections": 4000,
        "max_connections_per_address": 1000,
        "gateway_host": "127.0.0.1",
        "gateway_port": 8901,
        "gateway_wait": "PT1M",
        "gateway_queue": 256,
        "gateway_replica_calls": 256,
        "gateway_key_calls": 256,
        "gateway_answer_timeout": "PT10M",
        "gateway_grace": "PT30S",
        "gateway_buffer": 8388608,
        "gateway_memory": 268435456,
        "gateway_largest_body": 1073741824,
        "gateway_disk": 10737418240,
    }


def client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(trust_env=False, timeout=HANGS_S)

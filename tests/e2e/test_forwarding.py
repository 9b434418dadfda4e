"""Calls reach models through the forwarders of nodes, with mutual TLS, on the stack that `nodesmith up` starts."""

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from nodesmith.domain.forwarding import server_name, split_address
from nodesmith.gateway.forwarder_tls import ForwarderTls
from tests.e2e.fleet import PATIENCE_S, Fleet
from tests.e2e.test_install import unique
from tests.e2e.test_loads import until_loaded

NODE = "agent-1"


@dataclass(frozen=True)
class Served:
    """A model with one replica, and the forwarder in front of it."""

    fleet: Fleet
    model: str
    address: str
    """as the node reported it"""

    @property
    def folder(self) -> Path:
        return self.fleet.machine.folder / "agents" / NODE / "forward"

    @property
    def forwarder(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / "process.json").read_text())
        return record

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def call(self) -> int:
        connection = self.fleet.machine.home.connection()
        assert connection is not None
        body = {"model": self.model, "messages": [{"role": "user", "content": "A node"}], "max_tokens": 5}
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as http:
            answer = await http.post(
                f"{connection.gateway_url}/v1/chat/completions", json=body, headers=self.fleet.http.headers
            )
        return answer.status_code

    async def admits(self, context: ssl.SSLContext | None) -> bool:
        """Whether the forwarder passes a request on to the backend; None: without TLS."""
        name = server_name(self.forwarder["node_id"], f"{self.model}#0") if context else None
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, ssl=context, server_hostname=name
                )
                writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
                answer = await reader.read(12)
                writer.close()
        except OSError:
            return False
        return answer.startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
async def served(fleet: Fleet) -> AsyncIterator[Served]:
    model = unique("words")
    body = {"backend": "echo-lm", "selector": f"node.name={NODE}", "min_replicas": 1, "max_replicas": 1}
    answer = await fleet.http.put(f"/api/v1/deployments/{model}", json=body)
    assert answer.status_code == 200, answer.text
    replica = await until_loaded(fleet, model)
    yield Served(fleet, model, replica["address"])
    assert (await fleet.http.delete(f"/api/v1/deployments/{model}")).status_code == 200


def gateway_tls(served: Served) -> ssl.SSLContext:
    folder = served.fleet.machine.home.gateway_certificates
    return ForwarderTls(folder / "client.pem", folder / "client-key.pem", folder / "ca.pem")()


async def test_gateway_calls_a_model_through_the_forwarder_and_nobody_else_can(served: Served) -> None:
    address, is_forwarded = split_address(served.address)
    assert is_forwarded, served.address
    assert address == f"127.0.0.1:{served.forwarder['port']}"
    assert await served.call() == 200
    assert await served.admits(gateway_tls(served))
    assert not await served.admits(None), "a connection without TLS"
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.load_verify_locations(cafile=str(served.folder / "ca.pem"))
    assert not await served.admits(nobody), "no certificate"
    nobody.load_cert_chain(served.folder / "cert.pem", served.folder / "key.pem")
    assert not await served.admits(nobody), "a node's certificate of the same CA"


async def test_calls_go_on_while_the_agent_is_dead(served: Served) -> None:
    agent, forwarder = served.fleet.machine.pids()[NODE], served.forwarder["pid"]
    served.fleet.kill(NODE)
    assert [await served.call() for _ in range(10)] == [200] * 10
    await served.fleet.restarted(NODE, agent)
    replica = await until_loaded(served.fleet, served.model)
    assert replica["address"] == served.address
    assert [await served.call() for _ in range(5)] == [200] * 5
    assert (served.forwarder["pid"], psutil.pid_exists(forwarder)) == (forwarder, True), "it was adopted"


async def test_killed_forwarder_comes_back_at_the_same_address(served: Served) -> None:
    before = served.forwarder["pid"]
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while served.forwarder["pid"] == before or not await served.admits(gateway_tls(served)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        while await served.call() != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    assert served.forwarder["port"] == served.port

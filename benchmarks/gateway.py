"""Measures what the gateway and the forwarder cost one call: `make bench-gateway`.

The backend takes 20 ms; 64 connections call it directly, through the gateway, and through gateway and forwarder with
mutual TLS, in turns. All figures are ratios and differences to the direct calls of the same round; the median of the
rounds counts. All processes share the machine's cores.
"""

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import uvloop

from benchmarks.gateway_parts import ANSWER, MODEL
from benchmarks.stage import verdict
from nodesmith.agent.forward.certificate import NodeCertificate
from nodesmith.agent.forward.control import SOCKET, ForwarderAway, ForwarderClient
from nodesmith.domain.forwarding import GATEWAY_NAME, server_name
from nodesmith.runtime.replica_certificates import ReplicaAuthority
from nodesmith.stack.certificates import Certificates

ROUNDS = 5
SECONDS = 4.0
CONNECTIONS = 64
LATENCY: dict[str, Any] = {"bar": 1.5, "goal": 0.8, "unit": "ms"}
PROCESSOR: dict[str, Any] = {"bar": 200, "goal": 120, "unit": "us"}
NODE = "bench-node"
KEY = f"{MODEL}#0"
BODY = b'{"model": "bench", "messages": [{"role": "user", "content": "%s"}]}' % (b"A question about nodes. " * 20)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer key\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)


@dataclass(frozen=True)
class Figures:
    rate: float
    """calls per second"""
    p50: float
    """milliseconds"""
    cpu: float = 0.0
    """microseconds of the gateway for one call"""


class Caller(asyncio.Protocol):
    """One connection that calls again as soon as it has its answer."""

    def __init__(self, times: list[float]) -> None:
        self._times = times
        self._received = 0
        self._length = 0
        self._began = 0.0
        self.is_stopping = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._call()

    def _call(self) -> None:
        self._began, self._received, self._length = time.perf_counter(), 0, 0
        if self.transport is not None:
            self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        if not self._length:
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(data[:300])
            self._length = data.index(b"\r\n\r\n") + 4 + len(ANSWER)
        self._received += len(data)
        if self._received >= self._length:
            self._times.append(time.perf_counter() - self._began)
            if self.is_stopping and self.transport is not None:
                self.transport.close()
            else:
                self._call()


async def measure(port: int, process: psutil.Process | None = None) -> Figures:
    """Call for some seconds after half a second of warming up."""
    times: list[float] = []
    loop = asyncio.get_running_loop()
    callers = [(await loop.create_connection(lambda: Caller(times), "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]
    await asyncio.sleep(0.5)
    times.clear()
    began, cpu = time.perf_counter(), _cpu(process)
    await asyncio.sleep(SECONDS)
    calls, took, used = len(times), time.perf_counter() - began, _cpu(process) - cpu
    found = Figures(calls / took, statistics.median(times) * 1000, used / calls * 1e6)
    for caller in callers:
        caller.is_stopping = True
    await asyncio.sleep(0.3)
    return found


def _cpu(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    used = process.cpu_times()
    return float(used.user + used.system)


@contextmanager
def part(*arguments: str) -> Iterator[tuple[int, psutil.Process]]:
    argv = [sys.executable, "-m", "benchmarks.gateway_parts", *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), psutil.Process(process.pid)
        finally:
            process.kill()


@contextmanager
def forwarder(folder: Path, files: Certificates) -> Iterator[tuple[int, ForwarderClient]]:
    """A real forwarder process with a certificate of its node."""
    node = NodeCertificate(folder)
    authority = ReplicaAuthority.load(files.ca, files.ca_key)
    node.store(authority.sign_node(node.request(), NODE), files.ca.read_text())
    port = _free_port()
    settings = {"NODE_ID": NODE, "FOLDER": folder, "PORT": port, "CERT_FILE": node.cert_file}
    settings |= {"KEY_FILE": node.key_file, "CA_FILE": node.ca_file, "LOG_LEVEL": "WARNING"}
    environment = {**os.environ, **{f"NODESMITH_FORWARD_{name}": str(value) for name, value in settings.items()}}
    argv = [sys.executable, "-m", "nodesmith.agent.forward.main"]
    with subprocess.Popen(argv, env=environment) as process:
        try:
            yield port, ForwarderClient(folder / SOCKET)
        finally:
            process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _put(client: ForwarderClient, address: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                return await client.put(KEY, address)
            except ForwarderAway:
                await asyncio.sleep(0.05)


async def main() -> int:
    with tempfile.TemporaryDirectory() as name, part("backend") as (backend, _):
        folder = Path(name)
        files = Certificates(folder / "ca", client_name=GATEWAY_NAME)
        files.ensure_mutual("127.0.0.1")
        certificates = [str(files.client), str(files.client_key), str(files.ca)]
        (folder / "node").mkdir()
        with forwarder(folder / "node", files) as (behind, client):
            await _put(client, f"127.0.0.1:{backend}")
            secure = f"127.0.0.1:{behind}={server_name(NODE, KEY)}"
            with part("gateway", f"127.0.0.1:{backend}") as plain, part("gateway", secure, *certificates) as tls:
                return await _rounds(backend, plain, tls)


async def _rounds(backend: int, plain: tuple[int, psutil.Process], tls: tuple[int, psutil.Process]) -> int:
    rounds = []
    for number in range(1, ROUNDS + 1):
        direct, through, secure = await measure(backend), await measure(*plain), await measure(*tls)
        rounds.append((direct, through, secure))
        print(
            f"round {number}: direct {direct.rate:.0f}/s {direct.p50:.2f} ms; gateway {through.rate:.0f}/s "
            f"{through.p50:.2f} ms {through.cpu:.0f} us; with forwarder {secure.rate:.0f}/s {secure.p50:.2f} ms "
            f"{secure.cpu:.0f} us"
        )
    return _judge(rounds)


def _judge(rounds: list[tuple[Figures, Figures, Figures]]) -> int:
    median = statistics.median
    more: dict[str, Any] = {"bar": 0.9, "goal": 0.95, "more_is_better": True}
    lines = [
        verdict("calls through the gateway, to direct", median(t.rate / d.rate for d, t, _ in rounds), **more),
        verdict(
            "calls through gateway and forwarder, to direct",
            median(s.rate / d.rate for d, _, s in rounds),
            **{**more, "bar": 0.75, "goal": 0.85},
        ),
        verdict("added p50 of the gateway", median(t.p50 - d.p50 for d, t, _ in rounds), **LATENCY),
        verdict("added p50 of gateway and forwarder", median(s.p50 - d.p50 for d, _, s in rounds), **LATENCY),
        verdict("processor time of the gateway for one call", median(t.cpu for _, t, _ in rounds), **PROCESSOR),
        verdict("the same with TLS to the forwarder", median(s.cpu for _, _, s in rounds), **PROCESSOR),
    ]
    print("\n".join(lines))
    return 1 if any("MISSED" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))

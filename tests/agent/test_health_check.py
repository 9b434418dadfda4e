"""Health of a backend: 2xx on its health route; a backend may declare another route or none."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodesmith.agent.run.health_check import DEFAULT_ROUTE, health_route, is_healthy
from nodesmith.contracts.nats.messages import Result
from nodesmith.domain.operation import Reason
from tests.agent.archives import built, regular
from tests.agent.nodes import StartAgent
from tests.agent.test_running import FAST

SERVER = b"""import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/work" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
host, port = sys.argv[-1].rsplit(":", 1)
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    asked: list[bytes] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], asked


@pytest.mark.parametrize(
    ("status", "healthy"),
    [("200 OK", True), ("204 No Content", True), ("100 Continue", False), ("302 Found", False)]
    + [(status, False) for status in ("404 Not Found", "405 Not Allowed", "501 Not Implemented", "503 Busy", "x")],
)
async def test_only_2xx_on_the_health_route_is_healthy(status: str, healthy: bool):
    async with answering(f"HTTP/1.1 {status}\r\n\r\n".encode()) as (port, asked):
        assert await is_healthy("127.0.0.1", port) is healthy
        assert asked == [b"GET /healthz HTTP/1.1\r\n"]


@pytest.mark.parametrize("answer", [b"\x00\x00\x12\x04gRPC", b"HTTP/1.1 404 Not Found\r\n\r\n"])
async def test_a_backend_without_a_health_route_is_healthy_once_it_answers(answer: bytes):
    async with answering(answer) as (port, _):
        assert await is_healthy("127.0.0.1", port, None)


async def test_what_does_not_speak_http_is_healthy_once_it_answers():
    async with answering(b"\x00\x00\x12\x04") as (port, _):
        assert await is_healthy("127.0.0.1", port)


@pytest.mark.parametrize(
    ("declared", "route"),
    [
        ('{"health": "/health"}', "/health"),
        ('{"health": null}', None),
        ("{}", DEFAULT_ROUTE),
        ('{"health": "no path"}', DEFAULT_ROUTE),
        ('{"health": "/a b\\r\\nX: y"}', DEFAULT_ROUTE),
        ('{"health": 7}', DEFAULT_ROUTE),
        ("[1]", DEFAULT_ROUTE),
        ("{", DEFAULT_ROUTE),
        ("[" * 60000, DEFAULT_ROUTE),
    ],
)
def test_a_backend_may_declare_its_health_route(tmp_path: Path, declared: str, route: str | None):
    (tmp_path / "backend.json").write_text(declared)
    assert health_route(tmp_path) == route


def test_the_health_route_of_a_backend_that_declares_nothing(tmp_path: Path):
    assert (health_route(tmp_path), DEFAULT_ROUTE) == ("/healthz", "/healthz")


@pytest.mark.parametrize(
    ("declared", "healthy"), [(None, False), ({"health": "/work"}, True), ({"health": None}, True)]
)
async def test_a_404_on_the_health_route_is_not_healthy_unless_declared(
    start_agent: StartAgent, declared: dict[str, object] | None, healthy: bool
):
    node = await start_agent(**FAST | {"health_timeout": 20 if healthy else 1})
    run = b'#!/bin/sh\nexec "${PYTHON:-python3}" server.py "$@"\n'
    files = [regular("run.sh", run), regular("server.py", SERVER)]
    if declared is not None:
        files.append(regular("backend.json", json.dumps(declared).encode()))
    outcome = await node.outcome_of(node.command(built(*files), start=True))
    expected = (Result.SUCCEEDED, None) if healthy else (Result.FAILED, Reason.DID_NOT_START)
    assert (outcome.result, outcome.reason) == expected, outcome.error

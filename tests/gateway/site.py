"""A gateway in this process, on a real socket, with routes and keys that the test sets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2

from nodesmith.domain.access import Role
from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.domain.routing import ModelRoute, ReplicaRoute, RouteSnapshot
from nodesmith.domain.token_hash import hash_token
from nodesmith.gateway.api_keys import ApiKeys
from nodesmith.gateway.bodies import BodyLimits, BodyStore
from nodesmith.gateway.routes import RouteLimits, RouteTable
from nodesmith.gateway.server import Gateway
from nodesmith.gateway.upstream import UpstreamPool
from nodesmith.runtime.connection_limits import ConnectionLimits, OpenConnections
from nodesmith.runtime.listening import bind

KEY = "key-of-a-client"
MODEL = "words"
PATIENCE_S = 30.0


@dataclass
class Keys:
    """The tokens of the store."""

    roles: dict[str, Role] = field(default_factory=lambda: {hash_token(KEY): Role.CLIENT})
    asked: int = 0
    is_down: bool = False

    async def look_up(self, hashed: str) -> tuple[str, Role] | None:
        self.asked += 1
        if self.is_down:
            raise ServiceUnavailable("PostgreSQL does not answer.")
        return ("client", self.roles[hashed]) if hashed in self.roles else None


@dataclass
class Site:
    gateway: Gateway
    routes: RouteTable
    keys: Keys
    bodies: BodyStore
    address: tuple[str, int]
    wanted: list[str]
    client: httpx2.AsyncClient

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def route(self, *replicas: ReplicaRoute, model: str = MODEL, **options: Any) -> None:
        """Replace all routes."""
        self.routes.load(RouteSnapshot((ModelRoute(model, **options),), replicas))

    async def chat(self, **fields: Any) -> httpx2.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A node"}], **fields}
        return await self.client.post(f"{self.url}/v1/chat/completions", json=body)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address, limit=2**20)


@asynccontextmanager
async def gateway_site(
    tmp_path: Path | None = None,
    *,
    limits: RouteLimits | None = None,
    connections: ConnectionLimits | None = None,
    bodies: BodyLimits | None = None,
    calls_per_key: int = 256,
    answer_s: float = 600.0,
    pool: UpstreamPool | None = None,
) -> AsyncIterator[Site]:
    keys, wanted = Keys(), list[str]()
    routes = RouteTable(limits or RouteLimits(), wanted=wanted.append)
    store = BodyStore(tmp_path, bodies)
    opened = OpenConnections(connections or ConnectionLimits())
    api_keys = ApiKeys(keys.look_up, calls_per_key=calls_per_key)
    gateway = Gateway(routes, api_keys, pool or UpstreamPool(), store, opened, answer_s=answer_s)
    listening = bind("127.0.0.1", 0)
    address = listening.getsockname()
    await gateway.listen(listening)
    stop = asyncio.Event()
    running = asyncio.create_task(gateway.run_until(stop, grace_s=1.0))
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        async with httpx2.AsyncClient(headers=headers, trust_env=False, timeout=PATIENCE_S) as client:
            yield Site(gateway, routes, keys, store, address, wanted, client)
    finally:
        stop.set()
        await running


def replica(address: str, number: int = 0, **options: Any) -> ReplicaRoute:
    made = ReplicaRoute(id=f"replica-{number}", model=MODEL, node_id=f"node-{number}", address=address)
    return replace(made, **options)


def request(path: str = "/v1/chat/completions", body: bytes | None = None, *headers: str) -> bytes:
    """The bytes of a request."""
    content = json.dumps({"model": MODEL}).encode() if body is None else body
    lines = [f"POST {path} HTTP/1.1", "Host: here", f"Authorization: Bearer {KEY}", *headers]
    if not any(line.lower().startswith("transfer-encoding") for line in headers):
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Status, head and body of a response of known length."""
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        body = await reader.readexactly(int(length.partition(b":")[2]))
    return int(head.split(b" ")[1]), head, body


async def read_rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the gateway closes; empty after a reset."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""

"""Limits for unauthenticated clients, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from nodesmith.api.connections import LimitedServer
from nodesmith.runtime.connection_limits import ConnectionLimits
from nodesmith.runtime.listening import bind
from tests.api.station import Api

LIMITS = ConnectionLimits(head_bytes=8192, head_s=0.3, body_s=0.3, body_rate=1000, stuck_s=0.3)
PATIENCE_S = 20.0
HEAD = b"POST / HTTP/1.1\r\nHost: here\r\n"


@dataclass
class Echo:
    """An application that reports the client and the size of the request, and waits on demand."""

    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    ends: list[str] = field(default_factory=list)
    answer: bytes = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.may_read.wait()
        received, message = 0, dict[str, Any](more_body=True)
        while message.get("more_body"):
            message = await receive()
            received += len(message.get("body", b""))
        self.ends.append(message["type"])
        said = self.answer or f"{scope['client'][0]} {received}".encode()
        headers = [(b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def flood(self, part: bytes, most: int = 500) -> int:
        """Send it again and again until the server hangs up; how often it went out."""
        for count in range(most):
            try:
                await self.send(part)
            except OSError:
                return count
        return most

    async def answer(self) -> bytes:
        """Up to the end of one answer of a known length."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            return head + await self.reader.readexactly(int(length.partition(b":")[2]))

    async def rest(self) -> bytes:
        """What comes until the server closes."""
        said = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                while part := await self.reader.read(65536):
                    said += part
        return said


@dataclass
class Site:
    echo: Echo
    server: LimitedServer
    port: int
    clients: list[Client] = field(default_factory=list)

    async def connect(self, **options: Any) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port, **options)))
        return self.clients[-1]


@asynccontextmanager
async def served(limits: ConnectionLimits = LIMITS, **options: Any) -> AsyncIterator[Site]:
    echo = Echo()
    echo.may_read.set()
    server = LimitedServer(echo, limits=limits, lifespan="off", timeout_graceful_shutdown=1, **options)
    listening = bind("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    site = Site(echo, server, listening.getsockname()[1])
    try:
        yield site
    finally:
        for client in site.clients:
            client.writer.transport.abort()
        server.should_exit = True
        await serving


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with served() as site:
        yield site


async def test_head_of_usual_size_is_served(site: Site) -> None:
    client = await site.connect()
    for _ in range(2):
        await client.send(HEAD + b"Cookie: " + b"a" * 6000 + b"\r\nContent-Length: 2\r\n\r\nhi")
        assert (await client.answer()).endswith(b"127.0.0.1 2")


@pytest.mark.parametrize(
    "beginning",
    [
        HEAD + b"X-Endless: ",
        b"GET /",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;extension=",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Trailer: ",
    ],
    ids=["header", "path", "chunk extension", "trailer"],
)
async def test_endless_request_is_refused_at_its_limit(site: Site, beginning: bytes) -> None:
    client = await site.connect()
    await client.send(beginning)
    assert await client.flood(b"a" * 65_536) < 500
    with suppress(ConnectionError):
        assert (await client.rest()).startswith((b"HTTP/1.1 431 ", b""))
    other = await site.connect()
    await other.send(HEAD + b"Content-Length: 0\r\n\r\n")
    assert (await other.answer()).endswith(b" 0")


async def test_too_large_headers_get_a_431(site: Site) -> None:
    client = await site.connect()
    await client.send(HEAD + b"X-Large: " + b"a" * 30_000)
    said = await client.rest()
    assert said.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in said


async def test_too_many_headers_get_a_431(site: Site) -> None:
    client = await site.connect()
    await client.send(HEAD + b"a: b\r\n" * 101)
    assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def test_many_small_chunks_of_a_body_are_served(site: Site) -> None:
    """What comes beside the body is counted from the last byte of it."""
    client = await site.connect()
    await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 30_000 + b"0\r\n\r\n")
    assert (await client.answer()).endswith(b" 30000")


@pytest.mark.parametrize("beginning", [b"", HEAD, b"\r\n"], ids=["nothing", "half a head", "an empty line"])
async def test_unfinished_headers_time_out(site: Site, beginning: bytes) -> None:
    client = await site.connect()
    await client.send(beginning)
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_next_request_on_a_connection_has_the_same_time(site: Site) -> None:
    client = await site.connect()
    await client.send(HEAD + b"Content-Length: 0\r\n\r\n")
    await client.answer()
    await client.send(HEAD)
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_connection_between_two_requests_is_kept(site: Site) -> None:
    client, other = await site.connect(), await site.connect()
    await client.send(HEAD + b"Content-Length: 0\r\n\r\n")
    await client.answer()
    await other.rest()  # one that says nothing has used up its time meanwhile
    await client.send(HEAD + b"Content-Length: 0\r\n\r\n")
    assert (await client.answer()).endswith(b" 0")


async def test_unfinished_body_times_out_and_its_route_ends(site: Site) -> None:
    client = await site.connect()
    await client.send(HEAD + b"Content-Length: 100\r\n\r\nhalf")
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
    assert site.echo.ends == ["http.disconnect"]


async def test_trickling_body_times_out(site: Site) -> None:
    """Each byte buys a millisecond here, and the next one comes after ten."""
    client = await site.connect()
    await client.send(HEAD + b"Content-Length: 100000\r\n\r\n")

    async def trickle() -> None:
        while True:
            await client.send(b"a")
            await asyncio.sleep(0.01)

    trickling = asyncio.create_task(trickle())
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
    trickling.cancel()
    await asyncio.wait([trickling])


async def test_slow_body_that_keeps_the_rate_is_served() -> None:
    async with served(replace(LIMITS, body_rate=10)) as site:
        client = await site.connect()
        await client.send(HEAD + b"Content-Length: 200\r\n\r\n" + b"a" * 100)
        await (await site.connect()).rest()  # one that says nothing has used up its time meanwhile
        await client.send(b"a" * 100)
        assert (await client.answer()).endswith(b" 200")


async def test_client_does_not_time_out_while_the_route_does_not_read(site: Site) -> None:
    site.echo.may_read.clear()
    client = await site.connect()
    sending = asyncio.create_task(client.send(HEAD + b"Content-Length: 4000000\r\n\r\n" + b"a" * 4_000_000))
    for _ in range(2):
        await (await site.connect()).rest()
    site.echo.may_read.set()
    assert (await client.answer()).endswith(b" 4000000")
    await sending


async def test_client_that_reads_nothing_of_its_answer_is_disconnected(site: Site) -> None:
    site.echo.answer = b"a" * 50_000_000
    client = await site.connect(limit=1024)  # the transport stops reading at twice that
    await client.send(HEAD + b"Content-Length: 0\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        while not site.echo.ends or site.server.server_state.connections:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("change", [{"per_address": 3}, {"total": 3}])
async def test_connection_above_the_limit_gets_a_503_and_is_closed(change: dict[str, int]) -> None:
    async with served(replace(LIMITS, head_s=PATIENCE_S, **change)) as site:
        first, *_ = [await site.connect() for _ in range(3)]
        assert (await (await site.connect()).rest()).startswith(b"HTTP/1.1 503 ")
        first.writer.close()
        await first.writer.wait_closed()
        async with asyncio.timeout(PATIENCE_S):
            while not (await asked(site)).endswith(b" 0"):  # the server has not seen that one close yet
                pass


async def asked(site: Site) -> bytes:
    client = await site.connect()
    with suppress(ConnectionError):
        await client.send(HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
    return await client.rest()


async def test_trusted_proxy_may_have_as_many_connections_as_there_are() -> None:
    async with served(replace(LIMITS, per_address=1), trusted_proxies="127.0.0.0/8") as site:
        for _ in range(3):
            await site.connect()
        assert (await asked(site)).endswith(b" 0")


@pytest.mark.parametrize(
    ("trusted", "seen"),
    [("", b"127.0.0.1"), ("10.0.0.0/8", b"127.0.0.1"), ("127.0.0.1", b"203.0.113.9"), ("*", b"203.0.113.9")],
)
async def test_only_trusted_proxies_may_state_the_client_address(trusted: str, seen: bytes) -> None:
    async with served(trusted_proxies=trusted) as site:
        client = await site.connect()
        await client.send(HEAD + b"X-Forwarded-For: 203.0.113.9\r\nContent-Length: 0\r\n\r\n")
        assert (await client.answer()).endswith(seen + b" 0")


def test_limits_are_these() -> None:
    assert ConnectionLimits() == ConnectionLimits(
        head_bytes=32 * 1024,
        headers=100,
        head_s=10,
        body_s=20,
        body_rate=1000,
        stuck_s=120,
        total=4000,
        per_address=1000,
    )


async def test_api_has_these_limits(api: Api) -> None:
    port = int(api.url.rpartition(":")[2])
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    await client.send(HEAD + b"X-Large: " + b"a" * 60_000)
    assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
    client.writer.close()


PIPELINED = b"GET / HTTP/1.1\r\n\r\n"


async def test_a_few_requests_may_wait_on_one_connection(site: Site) -> None:
    client = await site.connect()
    await client.send(PIPELINED * 10)
    for _ in range(10):
        assert (await client.answer()).endswith(b"127.0.0.1 0")


async def test_many_requests_that_wait_on_one_connection_are_refused(site: Site) -> None:
    """Uvicorn queues them all, a hundred times as large as they came: 10 MB of them took more than a gigabyte."""
    site.echo.may_read.clear()
    client = await site.connect()
    await client.send(PIPELINED * 1000)
    assert (await client.rest()).startswith(b"HTTP/1.1 429 ")
    site.echo.may_read.set()
    other = await site.connect()
    await other.send(PIPELINED)
    assert (await other.answer()).endswith(b"127.0.0.1 0")

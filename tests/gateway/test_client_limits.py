"""What a client may use of the gateway: bytes, time and connections, over real sockets."""

import asyncio
from contextlib import suppress

import pytest

from nodesmith.runtime.connection_limits import ConnectionLimits
from tests.agent.waiting import until
from tests.gateway.backends import answering, length_of, scripted
from tests.gateway.site import KEY, MODEL, PATIENCE_S, gateway_site, read_response, read_rest, replica, request

LIMITS = ConnectionLimits(head_bytes=8192, head_s=0.3, body_s=0.3, body_rate=1000, stuck_s=0.3)


@pytest.mark.parametrize("endless", [b"x" * 1000, b"X-More: 1\r\n" * 100], ids=["no-line", "headers"])
async def test_endless_head_is_refused_at_its_limit(endless: bytes) -> None:
    async with gateway_site(connections=LIMITS) as site:
        reader, writer = await site.connect()
        writer.write(b"POST /v1/x HTTP/1.1\r\nHost: here\r\n")
        with suppress(ConnectionError):
            for _ in range(100_000):
                writer.write(endless)
                await writer.drain()
            pytest.fail("the gateway read a hundred megabytes")
        said = await read_rest(reader)
        assert not said or b" 431 " in said
        writer.close()


async def test_too_large_or_too_many_headers_get_a_431() -> None:
    async with gateway_site(connections=LIMITS) as site:
        for extra in ("X-Large: " + "x" * 9000, *["\r\n".join(f"X-{number}: 1" for number in range(101))]):
            reader, writer = await site.connect()
            writer.write(request("/v1/x", None, extra))
            assert b" 431 " in await read_rest(reader)
            writer.close()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/x HT", b"POST /v1/x HTTP/1.1\r\nHost: here\r\n"])
async def test_unfinished_head_times_out(sent: bytes) -> None:
    async with gateway_site(connections=LIMITS) as site:
        reader, writer = await site.connect()
        writer.write(sent)
        assert b" 408 " in await read_rest(reader)
        writer.close()


async def test_unfinished_body_times_out_and_reaches_no_replica() -> None:
    async with scripted(answering()) as backend, gateway_site(connections=LIMITS) as site:
        site.route(replica(backend.address))
        reader, writer = await site.connect()
        writer.write(request("/v1/x", b"x" * 500)[:-400])
        assert b" 408 " in await read_rest(reader)
        writer.close()
        assert not backend.heads
        assert site.bodies.memory == 0


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        name = head.split(b" ")[1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name))
        await writer.drain()

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        reader, writer = await site.connect()
        whole = b"".join(request(f"/v1/{number}") for number in range(20))
        for start in range(0, len(whole), 777):
            writer.write(whole[start : start + 777])
            await writer.drain()
        bodies = [(await read_response(reader))[2] for _ in range(20)]
        writer.close()
    assert bodies == [f"/v1/{number}".encode() for number in range(20)]


async def test_pipelined_requests_without_end_are_not_stored() -> None:
    """The gateway stops reading while one is served."""
    silent = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await silent.wait()

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        _reader, writer = await site.connect()
        sent, flood = 0, request("/v1/x", b'{"model": "words", "x": "%s"}' % (b"x" * 60_000))
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                for _ in range(1000):
                    writer.write(flood)
                    await writer.drain()
                    sent += len(flood)
        assert sent < 30 * 1024 * 1024
        assert site.bodies.memory < 1024 * 1024
        writer.transport.abort()


async def test_too_many_connections_are_refused() -> None:
    async with gateway_site(connections=ConnectionLimits(per_address=2)) as site:
        opened = [await site.connect() for _ in range(2)]
        await until(lambda: site.gateway._opened.total == 2, pause=0.01)
        reader, writer = await site.connect()
        assert b" 503 " in await read_rest(reader)
        writer.close()
        opened[0][1].close()
        await until(lambda: site.gateway._opened.total == 1, pause=0.01)
        assert (await site.client.get(f"{site.url}/healthz")).status_code == 200
        opened[1][1].close()


async def test_client_that_reads_nothing_is_disconnected_and_its_replica_is_free_again() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n%s\r\n" % (b"x" * 65536))
            await writer.drain()

    async with scripted(script) as backend, gateway_site(connections=LIMITS) as site:
        site.route(replica(backend.address))
        _reader, writer = await site.connect()
        writer.write(request())
        async with asyncio.timeout(PATIENCE_S):
            await backend.ended.wait()
        await until(lambda: not site.routes.held, pause=0.01)
        writer.transport.abort()


@pytest.mark.parametrize(
    "smuggled",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/x HTTP/1.1\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b" Folded: 1\r\n\r\n",
    ],
    ids=["both-lengths", "two-lengths", "odd-encoding", "folded"],
)
async def test_request_of_doubtful_length_is_refused(smuggled: bytes) -> None:
    async with scripted(answering()) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        reader, writer = await site.connect()
        key = f"Authorization: Bearer {KEY}\r\nX-Model: {MODEL}\r\n".encode()
        writer.write(b"POST /v1/x HTTP/1.1\r\nHost: here\r\n" + key + smuggled)
        assert b" 400 " in await read_rest(reader)
        writer.close()
        assert not backend.heads


async def test_offer_to_upgrade_is_ignored() -> None:
    async with scripted(answering(b"plain")) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        reader, writer = await site.connect()
        offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
        for _ in range(2):
            writer.write(request("/v1/x", None, *offer))
            assert (await read_response(reader))[2] == b"plain"
        writer.close()
    assert b"pgrade" not in backend.heads[0]

"""Replicas that die, hang or refuse, and what the client sees of it."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from nodesmith.gateway import routes as route_module
from nodesmith.gateway.bodies import BodyLimits
from nodesmith.gateway.routes import RouteLimits
from tests.agent.waiting import until
from tests.gateway.backends import Script, answering, echo_lm, length_of, scripted
from tests.gateway.site import MODEL, PATIENCE_S, gateway_site, read_rest, replica, request


def closing(after: bytes = b"") -> Script:
    """Read the request, send something, and hang up."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        writer.write(after)
        await writer.drain()
        raise ConnectionResetError

    return script


async def free_address() -> str:
    """An address on which nobody listens."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    server.close()
    return f"{address[0]}:{address[1]}"


async def test_request_is_repeated_elsewhere_before_the_first_byte() -> None:
    async with scripted(closing()) as bad, scripted(answering(b"good")) as good, gateway_site() as site:
        site.route(replica(bad.address, 0), replica(good.address, 1, in_flight=1))
        answer = await site.chat()
    assert answer.content == b"good"
    assert answer.headers["x-nodesmith-replica"] == "replica-1"
    assert (len(bad.heads), len(good.heads)) == (1, 1)


async def test_request_that_kills_replicas_is_sent_three_times_at_most() -> None:
    async with AsyncExitStack() as stack, gateway_site() as site:
        bad = [await stack.enter_async_context(scripted(closing())) for _ in range(5)]
        site.route(*(replica(each.address, number) for number, each in enumerate(bad)))
        answer = await site.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "replica_failed")
        assert sum(len(each.heads) for each in bad) == 3


async def test_spooled_request_is_not_repeated(tmp_path: Path) -> None:
    body = json.dumps({"model": MODEL, "x": "x" * 5000}).encode()
    limits = BodyLimits(buffer=1000)
    async with scripted(closing()) as bad, scripted(answering()) as good, gateway_site(tmp_path, bodies=limits) as site:
        site.route(replica(bad.address, 0), replica(good.address, 1, in_flight=1))
        answer = await site.client.post(f"{site.url}/v1/x", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "replica_failed")
        assert (len(bad.heads), len(good.heads)) == (1, 0)
        again = await site.client.post(f"{site.url}/v1/x", content=body)
        assert again.status_code == 200, "the failed replica is avoided"


async def test_failed_replica_is_avoided_for_ten_seconds() -> None:
    async with scripted(answering(b"good")) as good, gateway_site() as site:
        dead = await free_address()
        site.route(replica(dead, 0), replica(good.address, 1, in_flight=1))
        began = time.monotonic()
        assert (await site.chat()).content == b"good"
        failed = site.routes.models[MODEL].replicas["replica-0"]
        assert 9 < failed.failed_until - began < 12
        assert route_module.SKIP_S == 10.0
        for _ in range(5):
            assert (await site.chat()).content == b"good"
        assert len(good.heads) == 6


async def test_only_replica_that_restarts_costs_time_but_no_failure() -> None:
    """A new address of the replica ends the time in which it is avoided."""
    async with scripted(answering(b"good")) as good, gateway_site() as site:
        site.route(replica(await free_address(), 0))
        call = asyncio.create_task(site.chat())
        await until(lambda: site.routes.models[MODEL].waiting, pause=0.01)
        site.route(replica(good.address, 0))
        assert (await call).content == b"good"


async def test_connection_that_the_backend_closed_while_idle_is_replaced() -> None:
    served = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        """Answer the first request of a connection; close when the second one arrives."""
        nonlocal served
        served += 1
        if served == 2:
            raise ConnectionResetError
        await reader.readexactly(length_of(head))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        assert [(await site.chat()).status_code for _ in range(3)] == [200, 200, 200]
        assert site.routes.models[MODEL].replicas["replica-0"].failed_until == 0.0
        assert served == 4


async def test_client_sees_that_a_response_broke_off() -> None:
    part = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n"
    async with scripted(closing(part)) as bad, scripted(answering()) as good, gateway_site() as site:
        site.route(replica(bad.address, 0), replica(good.address, 1, in_flight=1))
        reader, writer = await site.connect()
        writer.write(request())
        whole = await read_rest(reader)
        writer.close()
        site.routes.models[MODEL].replicas["replica-0"].failed_until = 0.0
        with pytest.raises(httpx2.RemoteProtocolError):
            await site.chat()
    assert not whole.endswith(b"0\r\n\r\n")
    assert not good.heads


async def test_backend_that_does_not_speak_http_is_a_failed_replica() -> None:
    greeting = b"SSH-2.0-what\r\n"
    async with scripted(closing(greeting)) as bad, scripted(answering(b"good")) as good, gateway_site() as site:
        site.route(replica(bad.address, 0), replica(good.address, 1, in_flight=1))
        assert (await site.chat()).content == b"good"


async def test_replica_that_stays_silent_is_a_504_and_not_repeated() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await asyncio.Event().wait()

    async with scripted(script) as silent, scripted(answering()) as good, gateway_site(answer_s=0.5) as site:
        site.route(replica(silent.address, 0), replica(good.address, 1, in_flight=1))
        answer = await site.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "replica_timeout")
        assert not good.heads


async def test_disconnected_client_cancels_the_call_of_the_replica(tmp_path: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await reader.read(1)

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        reader, writer = await site.connect()
        writer.write(request())
        async with asyncio.timeout(PATIENCE_S):
            await reader.readuntil(b"first")
            assert site.routes.counts(["replica-0"]) == {"replica-0": 1}
            writer.transport.abort()
            await backend.ended.wait()
            await until(lambda: site.routes.counts(["replica-0"]) == {"replica-0": 0}, pause=0.01)


async def test_disconnected_client_that_waits_leaves_the_queue() -> None:
    async with gateway_site() as site:
        site.route()
        _reader, writer = await site.connect()
        writer.write(request())
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: site.routes.models[MODEL].waiting, pause=0.01)
            writer.transport.abort()
            await until(lambda: not site.routes.models[MODEL].waiting, pause=0.01)


async def test_slow_client_slows_the_replica_and_fills_no_memory() -> None:
    """Sockets and buffers hold a few megabytes; the rest stays with the replica."""
    part = b"x" * 65536
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        nonlocal sent
        await reader.readexactly(length_of(head))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n%s\r\n" % part)
            await writer.drain()
            sent += len(part)

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        _reader, writer = await site.connect()  # the reader takes two megabytes and stops
        writer.write(request())
        before = -1
        async with asyncio.timeout(PATIENCE_S):
            while before != sent or not sent:
                before = sent
                await asyncio.sleep(0.3)
        assert sent < 64 * 1024 * 1024
        writer.transport.abort()


@pytest.mark.timeout(120)
async def test_killed_backend_loses_only_the_calls_in_flight_there(tmp_path: Path) -> None:
    """kill -9 under load: no call fails that had not reached the killed process."""
    options = ("--token-ms", "2")
    async with (
        echo_lm(tmp_path, *options) as one,
        echo_lm(tmp_path, *options) as other,
        gateway_site(limits=RouteLimits(wait_s=20)) as site,
    ):
        site.route(replica(one.address, 0), replica(other.address, 1))
        answers: list[int] = []
        stop = asyncio.Event()

        async def call() -> None:
            while not stop.is_set():
                try:
                    answers.append((await site.chat(max_tokens=8)).status_code)
                except httpx2.HTTPError:
                    answers.append(0)

        calls = [asyncio.create_task(call()) for _ in range(16)]
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: len(answers) >= 50, pause=0.01)
            in_flight = site.routes.counts(["replica-0"])["replica-0"]
            one.kill()
            before = len(answers)
            await until(lambda: len(answers) >= before + 200, pause=0.01)
        stop.set()
        await asyncio.gather(*calls)
    failed = [status for status in answers if status != 200]
    assert len(failed) <= in_flight
    assert not failed, "a call that received no byte yet goes to the other replica"


async def test_stopped_gateway_finishes_open_calls(tmp_path: Path) -> None:
    async with echo_lm(tmp_path, "--token-ms", "50") as slow, gateway_site() as site:
        site.route(replica(slow.address))
        call = asyncio.create_task(site.chat(max_tokens=8))
        await until(lambda: site.routes.counts(["replica-0"]) == {"replica-0": 1}, pause=0.01)
        await site.gateway.close(10.0)
        assert (await call).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            await site.chat()

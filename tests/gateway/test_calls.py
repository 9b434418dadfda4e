"""Calls through the gateway to real echo-lm processes, and to scripted backends where a sound one cannot show it."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from nodesmith.gateway.bodies import BodyLimits
from nodesmith.gateway.routes import RouteLimits
from tests.agent.waiting import until
from tests.gateway.backends import EchoLm, answering, echo_lm, length_of, scripted
from tests.gateway.site import KEY, MODEL, PATIENCE_S, gateway_site, read_response, replica, request

MIB = 1024 * 1024


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EchoLm]:
    async with echo_lm(tmp_path_factory.mktemp("backend")) as running:
        yield running


async def test_response_is_the_one_of_the_backend(backend: EchoLm) -> None:
    async with gateway_site() as site:
        site.route(replica(backend.address))
        through = await site.chat(max_tokens=40)
        body = json.loads(through.request.content)
        direct = await site.client.post(f"http://{backend.address}/v1/chat/completions", json=body)
    assert (through.status_code, direct.status_code) == (200, 200)
    assert through.json()["choices"] == direct.json()["choices"]
    assert through.json()["usage"]["completion_tokens"] == 40
    assert through.headers["x-nodesmith-replica"] == "replica-0"
    assert through.headers["content-type"] == direct.headers["content-type"]


async def test_embeddings_and_completions_are_routed_too(backend: EchoLm) -> None:
    async with gateway_site() as site:
        site.route(replica(backend.address))
        vectors = await site.client.post(f"{site.url}/v1/embeddings", json={"model": MODEL, "input": ["a", "b"]})
        text = await site.client.post(f"{site.url}/v1/completions", json={"model": MODEL, "prompt": "A node"})
    assert len(vectors.json()["data"]) == 2
    assert text.json()["choices"][0]["text"]


async def test_stream_arrives_word_by_word(tmp_path: Path) -> None:
    async with echo_lm(tmp_path, "--token-ms", "100") as slow, gateway_site() as site:
        site.route(replica(slow.address))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A node"}], "stream": True, "max_tokens": 8}
        arrivals, lines = [], []
        async with site.client.stream("POST", f"{site.url}/v1/chat/completions", json=body) as stream:
            assert stream.headers["content-type"] == "text/event-stream"
            async for line in stream.aiter_lines():
                if line:
                    arrivals.append(time.monotonic())
                    lines.append(line)
    assert lines[-1] == "data: [DONE]"
    assert len(lines) == 11
    assert arrivals[-1] - arrivals[0] > 0.4, "the gateway held the words back"


async def test_body_reaches_the_backend_unchanged_and_the_key_does_not() -> None:
    body = json.dumps({"x": "\u00e9\u0000", "model": MODEL}).encode() + b" \n"
    received = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        received.append((head, await reader.readexactly(length_of(head))))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Own: 1\r\nConnection: close\r\n\r\n\x00\xff!")

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        reader, writer = await site.connect()
        writer.write(request("/v1/any/route?q=1", body, "X-Kept: yes", "Connection: keep-alive, X-Mine", "X-Mine: 1"))
        _status, head, answer = await read_response(reader)
        writer.close()
    sent, content = received[0]
    assert content == body
    assert sent.startswith(b"POST /v1/any/route?q=1 HTTP/1.1\r\n")
    assert b"X-Kept: yes" in sent
    assert KEY.encode() not in sent
    assert b"X-Mine" not in sent
    assert answer == b"\x00\xff!"
    assert b"X-Own: 1" in head
    assert b"connection: keep-alive" in head


@pytest.mark.parametrize("close", [False, True])
async def test_response_without_length_is_passed_on_as_it_comes(close: bool) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        if close:
            writer.write(b"\r\nfirst second")
            await writer.drain()
            writer.close()
        else:
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n6\r\nfirst \r\n6\r\nsecond\r\n0\r\n\r\n")

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        assert (await site.chat()).content == b"first second"
        assert (await site.chat()).content == b"first second"


async def test_client_of_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nwords\r\n0\r\n\r\n")

    async with scripted(script) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        reader, writer = await site.connect()
        writer.write(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        whole = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == b"words"
    assert b"chunked" not in head


async def test_chunked_request_and_head_request_are_served(backend: EchoLm) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b'{"model": "words",'
        yield b' "prompt": "A node"}'

    async with gateway_site() as site:
        site.route(replica(backend.address))
        answer = await site.client.post(f"{site.url}/v1/completions", content=parts())
        assert answer.status_code == 200
        head = await site.client.head(f"{site.url}/v1/none", headers={"X-Model": MODEL})
        assert head.status_code == 501
        assert (await site.client.head(f"{site.url}/v1/models")).status_code == 200


async def test_client_that_expects_100_is_asked_for_its_body() -> None:
    async with scripted(answering(b"done")) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        head, _, body = request("/v1/x", None, "Expect: 100-continue").partition(b"\r\n\r\n")
        reader, writer = await site.connect()
        writer.write(head + b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await read_response(reader))[2] == b"done"
        writer.close()
    assert b"xpect" not in backend.heads[0]


# which model


async def test_request_without_a_model_is_refused(backend: EchoLm) -> None:
    async with gateway_site() as site:
        site.route(replica(backend.address))
        for content in (b"{}", b'{"model": 7}', b'{"model": ""}', b"[1]", b""):
            answer = await site.client.post(f"{site.url}/v1/chat/completions", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_missing"), content
        broken = await site.client.post(f"{site.url}/v1/chat/completions", content=b"{model")
        assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")


async def test_unknown_model_is_a_404_and_an_unknown_path_too(backend: EchoLm) -> None:
    async with gateway_site() as site:
        site.route(replica(backend.address))
        answer = await site.chat(model="nobody")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert (await site.client.get(f"{site.url}/elsewhere")).json()["error"]["code"] == "unknown_path"


@pytest.mark.parametrize("before", [0, 100 * 1024])
async def test_form_names_its_model_in_the_first_64_kib_or_in_a_header(before: int) -> None:
    data = {"padding": "x" * before, "model": MODEL}
    files = {"file": ("speech.wav", b"\x00" * 200_000)}
    async with scripted(answering()) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        url = f"{site.url}/v1/audio/transcriptions"
        answer = await site.client.post(url, data=data, files=files)
        assert answer.status_code == (400 if before else 200)
        named = await site.client.post(url, data=data, files=files, headers={"X-Model": MODEL})
        assert named.status_code == 200


async def test_models_are_listed(backend: EchoLm) -> None:
    async with gateway_site() as site:
        site.route(replica(backend.address))
        listed = await site.client.get(f"{site.url}/v1/models")
        assert [entry["id"] for entry in listed.json()["data"]] == [MODEL]
        assert (await site.client.get(f"{site.url}/v1/models/{MODEL}")).json()["id"] == MODEL
        assert (await site.client.get(f"{site.url}/v1/models/nobody")).status_code == 404
        assert (await site.client.delete(f"{site.url}/v1/models/{MODEL}")).status_code == 405


async def test_gateway_is_ready_once_it_has_routes() -> None:
    async with gateway_site() as site, httpx2.AsyncClient(trust_env=False) as stranger:
        assert (await stranger.get(f"{site.url}/healthz")).status_code == 200
        assert (await stranger.get(f"{site.url}/readyz")).status_code == 503
        assert (await site.chat()).status_code == 503
        site.route()
        assert (await stranger.get(f"{site.url}/readyz")).status_code == 200


# large bodies


async def test_body_of_100_mb_is_spooled_and_arrives_whole(tmp_path: Path) -> None:
    digests = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        left, digest = length_of(head), hashlib.sha256()
        while left:
            part = await reader.read(min(left, MIB))
            digest.update(part)
            left -= len(part)
        digests.append(digest.hexdigest())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    body = b'{"model": "words", "input": "' + bytes(range(48, 58)) * (10 * MIB) + b'"}'
    async with scripted(script) as backend, gateway_site(tmp_path) as site:
        site.route(replica(backend.address))
        answer = await site.client.post(f"{site.url}/v1/embeddings", content=body)
        assert answer.status_code == 200
        assert (site.bodies.memory, site.bodies.disk) == (0, 0)
    assert digests == [hashlib.sha256(body).hexdigest()]


async def test_body_above_the_limit_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with gateway_site(tmp_path, bodies=BodyLimits(largest=1000)) as site:
        site.route()
        reader, writer = await site.connect()
        writer.write(request("/v1/x", b"x" * 2000)[:300])
        assert (await read_response(reader))[0] == 413
        writer.close()


async def test_bodies_of_all_clients_together_are_bounded(tmp_path: Path) -> None:
    """Beyond the memory they go to files, beyond the files they are refused."""
    limits = BodyLimits(buffer=MIB, memory=100_000, disk=300_000)
    body = json.dumps({"model": MODEL, "x": "x" * 200_000}).encode()
    release = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.readexactly(length_of(head))
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with scripted(script) as backend, gateway_site(tmp_path, bodies=limits) as site:
        site.route(replica(backend.address))
        url = f"{site.url}/v1/x"
        first = asyncio.create_task(site.client.post(url, content=body))
        await until(lambda: backend.heads, pause=0.01)
        second = await site.client.post(url, content=body)
        release.set()
        assert (second.status_code, second.json()["error"]["code"]) == (503, "spool_full")
        assert (await first).status_code == 200
        assert (site.bodies.memory, site.bodies.disk) == (0, 0)


# waiting for a replica


async def test_request_waits_for_the_first_replica(backend: EchoLm) -> None:
    async with gateway_site() as site:
        site.route()
        call = asyncio.create_task(site.chat())
        await until(lambda: site.wanted, pause=0.01)
        site.route(replica(backend.address))
        assert (await call).status_code == 200
    assert set(site.wanted) == {MODEL}


async def test_request_that_waited_in_vain_gets_the_loading_object() -> None:
    async with gateway_site(limits=RouteLimits(wait_s=0.2)) as site:
        site.route(loading={"state": "loading", "node": "node-7"})
        answer = await site.chat()
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "model_loading"
    assert answer.json()["loading"] == {"model": MODEL, "state": "loading", "node": "node-7"}


async def test_queue_of_a_model_is_bounded() -> None:
    async with gateway_site(limits=RouteLimits(queue=2, wait_s=0.5)) as site:
        site.route()
        answers = await asyncio.gather(*(site.chat() for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [429, 429, 429, 503, 503]
    assert {answer.headers["retry-after"] for answer in answers if answer.status_code == 429} == {"5"}


async def test_requests_beyond_the_limit_of_a_replica_wait_their_turn() -> None:
    busy, most = 0, 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        nonlocal busy, most
        await reader.readexactly(length_of(head))
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.02)
        busy -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with scripted(script) as backend, gateway_site(limits=RouteLimits(replica_calls=2)) as site:
        site.route(replica(backend.address))
        answers = await asyncio.gather(*(site.chat() for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    assert most == 2


async def test_default_limits() -> None:
    assert RouteLimits() == RouteLimits(replica_calls=256, queue=256, wait_s=60.0)
    assert BodyLimits() == BodyLimits(buffer=8 * MIB, memory=256 * MIB, largest=1024 * MIB, disk=10240 * MIB)

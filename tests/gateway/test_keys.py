"""API keys: who may call, for how long an answer is remembered, and how many calls a key may have open."""

import asyncio

import httpx2
import pytest

from nodesmith.domain.access import Role
from nodesmith.domain.token_hash import hash_token
from nodesmith.gateway.answers import Refusal
from nodesmith.gateway.api_keys import CACHED_S, OUTAGE_S, ApiKeys
from tests.agent.waiting import until
from tests.gateway.backends import answering, scripted
from tests.gateway.site import KEY, PATIENCE_S, Keys, gateway_site, read_response, replica, request


async def test_call_without_a_valid_key_is_refused_before_its_body_is_read() -> None:
    async with scripted(answering()) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        for wrong in ("", "Bearer", "Bearer guessed", "Basic abc"):
            reader, writer = await site.connect()
            head = request().replace(f"Bearer {KEY}".encode(), wrong.encode()).partition(b"\r\n\r\n")[0]
            writer.write(head.replace(b"Content-Length: 18", b"Content-Length: 99999") + b"\r\n\r\n")
            status, answer, _body = await read_response(reader)
            assert (status, b"www-authenticate: Bearer" in answer) == (401, True), wrong
            writer.close()
    assert not backend.heads


async def test_whole_requests_with_wrong_keys_are_refused_too() -> None:
    """Also several at once, before and behind a valid one."""
    good, bad = request(), request().replace(KEY.encode(), b"guessed")
    async with scripted(answering(b"{}")) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        for sent, statuses in ((bad, [401]), (bad + bad, [401]), (bad + good, [401]), (good + bad, [200, 401])):
            reader, writer = await site.connect()
            writer.write(sent)
            assert [(await read_response(reader))[0] for _ in statuses] == statuses
            writer.close()
        assert site.bodies.memory == 0
    assert len(backend.heads) == 1


async def test_key_may_be_given_as_x_api_key_and_does_not_reach_the_backend() -> None:
    async with scripted(answering(b"{}")) as backend, gateway_site() as site:
        site.route(replica(backend.address))
        async with httpx2.AsyncClient(trust_env=False, timeout=PATIENCE_S) as other:
            answer = await other.post(f"{site.url}/v1/x", json={"model": "words"}, headers={"X-Api-Key": KEY})
    assert answer.status_code == 200
    assert KEY.encode() not in backend.heads[0]


async def test_every_role_of_people_may_call_too() -> None:
    assert all(role.includes(Role.CLIENT) for role in Role)
    assert not Role.CLIENT.includes(Role.VIEWER)


async def test_keys_are_looked_up_once_in_ten_seconds() -> None:
    now, keys = 100.0, Keys()
    api = ApiKeys(keys.look_up, clock=lambda: now)
    await api.check(KEY)
    await api.check(KEY)
    assert (keys.asked, CACHED_S) == (1, 10.0)
    with pytest.raises(Refusal):
        await api.check("guessed")
    with pytest.raises(Refusal):
        await api.check("guessed")
    assert keys.asked == 2
    keys.roles.clear()
    now += CACHED_S + 1
    assert api.cached(KEY) is None
    with pytest.raises(Refusal, match="not valid"):
        await api.check(KEY)


async def test_known_keys_stay_valid_while_the_store_is_away() -> None:
    now, keys = 100.0, Keys()
    api = ApiKeys(keys.look_up, clock=lambda: now)
    await api.check(KEY)
    keys.is_down = True
    now += CACHED_S + 1
    assert (await api.check(KEY)).is_valid
    with pytest.raises(Refusal) as refused:
        await api.check("new")
    assert refused.value.status == 503
    now += OUTAGE_S
    with pytest.raises(Refusal):
        await api.check(KEY)


async def test_guessed_keys_do_not_fill_the_memory() -> None:
    api = ApiKeys(Keys().look_up)
    for number in range(10_500):
        with pytest.raises(Refusal):
            await api.check(f"guess-{number}")
    assert len(api._cache) == 10_000
    assert hash_token("guess-10499") in api._cache


async def test_open_calls_of_a_key_are_limited() -> None:
    release = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        raise ConnectionResetError

    async with scripted(script) as backend, gateway_site(calls_per_key=2) as site:
        site.route(replica(backend.address))
        calls = [asyncio.create_task(site.chat()) for _ in range(2)]
        await until(lambda: len(backend.heads) >= 2, pause=0.01)
        refused = await site.chat()
        release.set()
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200, 200]
        assert (await site.chat()).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "key_limit")
    assert refused.headers["retry-after"] == "1"

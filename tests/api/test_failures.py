"""Wrong credentials: too many get 429; a valid credential is never delayed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest

from nodesmith.api.login_throttle import LoginFailures
from nodesmith.runtime.client_addresses import network
from tests.api.station import ADMIN_TOKEN, REGISTRATION_TOKEN, Api, a_nats_key, bearer, served


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
async def strict(api: Api, hand: Hand) -> AsyncIterator[Api]:
    """The same API with a limit of three a minute."""
    async with served(replace(api.deps, failures=LoginFailures(3, clock=hand))) as strict:
        yield strict


async def status(api: Api, token: str, path: str = "/api/v1/nodes") -> int:
    return (await api.http.get(path, headers=bearer(token))).status_code


async def test_wrong_credentials_get_429_with_retry_after(strict: Api, hand: Hand) -> None:
    assert [await status(strict, f"guess-{number}") for number in range(4)] == [401, 401, 401, 429]
    refused = await strict.http.get("/api/v1/nodes", headers=bearer("one-more"))
    assert refused.headers["Retry-After"] == "20"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "too_many_failures"
    hand.now += 20
    assert [await status(strict, f"late-{number}") for number in range(2)] == [401, 429]


async def test_lock_out_never_grows_beyond_a_minute(strict: Api, hand: Hand) -> None:
    """Also by a valid credential that asks for what it does not open: that raised it without bound."""
    node = await strict.approved_node()
    for number in range(20):
        await status(strict, f"guess-{number}")
        await status(strict, node["api_token"])
    refused = await strict.http.get("/api/v1/nodes", headers=bearer("one-more"))
    assert (refused.status_code, int(refused.headers["Retry-After"]) <= 60) == (429, True)
    hand.now += 60
    assert await status(strict, "after-a-minute") == 401


async def test_wait_is_at_most_a_minute_whatever_the_limit() -> None:
    failures = LoginFailures(1, clock=Hand())
    assert [failures.failed("a") for _ in range(5)] == [0, 60, 60, 60, 60]


@pytest.mark.parametrize("whose", ["admin", "token", "node", "registration", "invite"])
async def test_valid_credential_is_not_held_up_by_wrong_ones(strict: Api, whose: str) -> None:
    """Also one that this process has never seen before."""
    node = await strict.approved_node()
    token = (await strict.http.post("/api/v1/tokens", json={"name": "fresh", "role": "viewer"})).json()
    invite = (await strict.http.post("/api/v1/invites", json={})).json()
    await asyncio.gather(*(status(strict, f"{mark}guess") for mark in ("", "nstok-", "nsinv-") for _ in range(10)))
    heartbeat = f"/api/node/{node['id']}/heartbeat"
    body = {"name": f"joins-by-{whose}", "protocol": 2, "machine_id": "m", "nats_key": a_nats_key()}
    asked = {
        "admin": ("GET", "/api/v1/nodes", ADMIN_TOKEN),
        "token": ("GET", "/api/v1/nodes", token.get("token", "")),
        "node": ("POST", heartbeat, node["api_token"]),
        "registration": ("POST", "/api/node/register", REGISTRATION_TOKEN),
        "invite": ("POST", "/api/node/register", invite["token"]),
    }
    method, path, secret = asked[whose]
    answer = await strict.http.request(method, path, json=body if method == "POST" else None, headers=bearer(secret))
    await strict.http.delete("/api/v1/tokens/fresh")
    assert answer.is_success, answer.text


@pytest.mark.parametrize("whose", ["node", "registration", "invite"])
async def test_valid_credential_without_access_does_not_count(strict: Api, whose: str) -> None:
    node = await strict.approved_node()
    invite = (await strict.http.post("/api/v1/invites", json={})).json()
    secret = {"node": node["api_token"], "registration": REGISTRATION_TOKEN, "invite": invite["token"]}[whose]
    assert {await status(strict, secret) for _ in range(10)} == {401}
    assert await status(strict, "nsinv-guess" if whose == "invite" else "guess") == 401


async def test_credential_of_a_removed_node_does_not_count(strict: Api) -> None:
    node = await strict.approved_node()
    await strict.http.delete(f"/api/v1/nodes/{node['id']}")
    assert {await status(strict, node["api_token"]) for _ in range(5)} == {401}


async def test_revoked_token_counts_as_a_wrong_one(strict: Api) -> None:
    made = (await strict.http.post("/api/v1/tokens", json={"name": "revoked-soon", "role": "viewer"})).json()
    await strict.http.delete(f"/api/v1/tokens/{made['id']}")
    assert [await status(strict, made["token"]) for _ in range(4)] == [401, 401, 401, 429]


async def test_each_kind_of_credential_is_counted_separately(strict: Api) -> None:
    """A node with a spent invite does not hold up a person who mistypes a token."""
    assert [await status(strict, f"nsinv-{number}") for number in range(4)][-1] == 429
    assert await status(strict, "nstok-mistyped") == 401


async def test_a_token_in_the_body_of_a_registration_is_a_guess_too(strict: Api) -> None:
    """Else the registration token, or an invite, could be guessed as fast as the API answers."""
    async with httpx2.AsyncClient(base_url=strict.url, timeout=30) as stranger:

        async def register(token: str) -> int:
            body = {"name": f"n-{token}", "address": "h:1", "token": token}
            return (await stranger.post("/api/node/register", json=body)).status_code

        assert [await register(f"guess-{number}") for number in range(4)] == [401, 401, 401, 429]
        assert await register(REGISTRATION_TOKEN) == 201


async def test_sign_in_links_are_guesses_too(strict: Api) -> None:
    async with httpx2.AsyncClient(base_url=strict.url, timeout=30) as stranger:
        statuses = [(await stranger.get(f"/sign-in/guess-{number}")).status_code for number in range(4)]
        assert statuses == [401, 401, 401, 429]
        link = (await strict.http.post("/api/v1/sign-in-links")).json()["url"]
        assert (await stranger.get(link)).status_code == 303


async def test_answers_stay_whole_when_a_refusal_takes_their_place(strict: Api) -> None:
    """Over one connection: nothing of the first answer follows the second."""
    for number in range(8):
        answer = await strict.http.get("/api/v1/nodes", headers=bearer(f"guess-{number}"))
        assert answer.json()["status"] == answer.status_code
    assert (await strict.http.get("/healthz")).status_code == 200


async def test_counting_costs_bounded_memory() -> None:
    failures = LoginFailures(3, clock=Hand())
    for number in range(20_000):
        failures.failed(f"10.{number // 65536}.{number // 256 % 256}.{number % 256} ")
    assert len(failures._failures) == 10_000


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("not an address", "not an address", True),
    ],
)
def test_one_subscriber_is_one_key(one: str, other: str, are_one: bool) -> None:
    assert (network(one) == network(other)) is are_one

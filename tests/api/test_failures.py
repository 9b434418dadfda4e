"""Wrong credentials: after too many an address has to wait; who was right from there before does not."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2
import pytest

from api.failures import FailedSignIns
from tests.api.station import REGISTRATION_TOKEN, Api, bearer, served


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
    async with served(replace(api.parts, failures=FailedSignIns(3, clock=hand))) as strict:
        yield strict


async def status(api: Api, token: str, path: str = "/api/nodes") -> int:
    return (await api.http.get(path, headers=bearer(token))).status_code


async def test_guessing_is_slowed_down_and_told_for_how_long(strict: Api, hand: Hand) -> None:
    assert [await status(strict, f"guess-{number}") for number in range(4)] == [401, 401, 401, 429]
    refused = await strict.http.get("/api/nodes", headers=bearer("one-more"))
    assert refused.headers["Retry-After"] == "20"
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "too_many_failures"
    hand.now += 20
    assert [await status(strict, f"late-{number}") for number in range(2)] == [401, 429]


async def test_a_right_guess_is_not_told_from_a_wrong_one_while_the_address_waits(strict: Api, api: Api) -> None:
    made = (await api.http.post("/api/tokens", json={"name": "late-comer", "role": "viewer"})).json()
    for number in range(3):
        await status(strict, f"guess-{number}")
    assert await status(strict, made["token"]) == 429


async def test_who_was_right_before_is_not_locked_out_by_others(strict: Api) -> None:
    assert (await strict.http.get("/api/nodes")).status_code == 200
    for number in range(10):
        await status(strict, f"guess-{number}")
    assert (await strict.http.get("/api/nodes")).status_code == 200


async def test_an_open_route_makes_no_credential_known(strict: Api) -> None:
    """Else a guesser would show each guess at /healthz first."""
    for number in range(3):
        await status(strict, f"guess-{number}")
    assert await status(strict, "another", "/healthz") == 429
    async with httpx2.AsyncClient(base_url=strict.url) as stranger:
        assert (await stranger.get("/healthz")).status_code == 200
    assert await status(strict, "another") == 429


async def test_a_token_in_the_body_of_a_registration_is_a_guess_too(strict: Api) -> None:
    """Else the registration token, or an invite, could be guessed as fast as the API answers."""
    async with httpx2.AsyncClient(base_url=strict.url) as stranger:

        async def register(token: str) -> int:
            body = {"name": f"n-{token}", "address": "h:1", "token": token}
            return (await stranger.post("/api/node/register", json=body)).status_code

        assert await register(REGISTRATION_TOKEN) == 201
        assert [await register(f"guess-{number}") for number in range(4)] == [401, 401, 401, 429]
        assert await register(REGISTRATION_TOKEN) == 429, "a right guess is not told from a wrong one"


async def test_who_was_right_before_may_be_wrong_once(strict: Api) -> None:
    """A token that is shown where it does not belong is no guess: it opens what it opens."""
    assert (await strict.http.get("/api/nodes")).status_code == 200
    for number in range(3):
        await status(strict, f"guess-{number}")
    assert (await strict.http.get("/api/node/nobody/sources")).status_code == 401
    assert (await strict.http.get("/api/nodes")).status_code == 200


async def test_sign_in_links_and_registration_tokens_are_guesses_too(strict: Api) -> None:
    async with httpx2.AsyncClient(base_url=strict.url) as stranger:
        assert (await stranger.get("/sign-in/guess-1")).status_code == 401
        assert (await stranger.get("/sign-in/guess-2")).status_code == 401
        body = {"name": "n", "protocol": 2, "machine_id": "m"}
        wrong = await stranger.post("/api/node/register", json=body, headers=bearer(f"{REGISTRATION_TOKEN}x"))
        assert wrong.status_code == 401
        assert (await stranger.get("/sign-in/guess-3")).status_code == 429

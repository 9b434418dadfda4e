"""The keep-alive of a stream is always on time, and the credential is checked with it."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from nodesmith.api.auth import SESSION_COOKIE
from nodesmith.api.stream import KEEP_ALIVE_S, EventHub
from nodesmith.contracts.nats.messages import Progress
from nodesmith.domain.operation import State
from nodesmith.store.operations.events import EventFeed
from tests.api.sse import reading
from tests.api.station import Api, bearer, served
from tests.databases import opened
from tests.store.transitions import a_request, transition


@asynccontextmanager
async def with_keep_alive(api: Api, database_url: str, seconds: float) -> AsyncIterator[Api]:
    async with opened(database_url) as database:
        hub = EventHub(EventFeed(database), keep_alive_s=seconds)
        async with served(replace(api.deps, events=hub)) as quick:
            yield quick


@asynccontextmanager
async def meanwhile(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def change_others_without_end(api: Api) -> None:
    request, number = a_request(), 0
    while True:
        number += 1
        await api.deps.operations.record(transition(request, State.RUNNING, at=number, seq=number))


async def tick_without_end(api: Api, op_id: str) -> None:
    while True:
        api.deps.events.tick(Progress(op_id=op_id, percentage=1))
        await asyncio.sleep(0.001)


async def test_events_of_other_operations_do_not_delay_the_keep_alive(api: Api, database_url: str) -> None:
    async with (
        with_keep_alive(api, database_url, 0.5) as quick,
        reading(quick, op_id="quiet") as reader,
        meanwhile(change_others_without_end(quick)),
    ):
        assert [await reader.comment(), await reader.comment()] == [": still here"] * 2


async def test_stream_that_is_busy_itself_has_its_keep_alive_too(api: Api, database_url: str) -> None:
    async with (
        with_keep_alive(api, database_url, 0.5) as quick,
        reading(quick, op_id="busy") as reader,
        meanwhile(tick_without_end(quick, "busy")),
    ):
        assert [await reader.comment(), await reader.comment()] == [": still here"] * 2


def test_keep_alive_comes_every_fifteen_seconds() -> None:
    """The command line gives a silent stream up after 40."""
    assert KEEP_ALIVE_S == 15


@dataclass(frozen=True)
class Guest:
    """A viewer with a token of its own, that an admin can revoke."""

    token_id: str
    token: str


@pytest.fixture
async def guest(api: Api) -> Guest:
    made = await api.http.post("/api/v1/tokens", json={"name": f"guest-{secrets.token_hex(4)}", "role": "viewer"})
    assert made.status_code == 201, made.text
    return Guest(made.json()["id"], made.json()["token"])


@asynccontextmanager
async def signed_in(api: Api, guest: Guest) -> AsyncIterator[Api]:
    """A browser that this token signed in."""
    link = await api.http.post("/api/v1/sign-in-links", headers=bearer(guest.token))
    async with httpx2.AsyncClient(base_url=api.url, timeout=30) as browser:
        opened = await browser.get(httpx2.URL(link.json()["url"]).path)
        assert opened.status_code == 303
        assert SESSION_COOKIE in browser.cookies
        yield replace(api, http=browser)


@asynccontextmanager
async def with_token(api: Api, guest: Guest) -> AsyncIterator[Api]:
    async with httpx2.AsyncClient(base_url=api.url, headers=bearer(guest.token), timeout=30) as program:
        yield replace(api, http=program)


@pytest.mark.parametrize("admitted", [with_token, signed_in])
async def test_revoked_token_ends_its_streams(api: Api, database_url: str, guest: Guest, admitted: Any) -> None:
    async with (
        with_keep_alive(api, database_url, 0.05) as quick,
        admitted(quick, guest) as theirs,
        reading(theirs) as reader,
        reading(quick) as other,
    ):
        await reader.comment()
        assert (await api.http.delete(f"/api/v1/tokens/{guest.token_id}")).status_code == 200
        await reader.end()
        assert await other.comment() == ": still here"
        assert (await theirs.http.get("/api/v1/events")).status_code == 401


async def test_revoked_token_ends_a_stream_that_is_never_idle(api: Api, database_url: str, guest: Guest) -> None:
    async with (
        with_keep_alive(api, database_url, 0.05) as quick,
        with_token(quick, guest) as theirs,
        reading(theirs) as reader,
        meanwhile(tick_without_end(quick, "busy")),
    ):
        await reader.comment()
        assert (await api.http.delete(f"/api/v1/tokens/{guest.token_id}")).status_code == 200
        await reader.end()


async def test_browser_that_signs_out_ends_its_streams(api: Api, database_url: str, guest: Guest) -> None:
    async with (
        with_keep_alive(api, database_url, 0.05) as quick,
        signed_in(quick, guest) as theirs,
        reading(theirs) as reader,
        signed_in(quick, guest) as elsewhere,
        reading(elsewhere) as other,
    ):
        await reader.comment()
        left = await theirs.http.post("/api/v1/sign-out", headers={"Origin": quick.url})
        assert left.status_code == 200, left.text
        await reader.end()
        assert await other.comment() == ": still here"


async def test_session_that_an_admin_ends_ends_its_streams(api: Api, database_url: str, guest: Guest) -> None:
    async with (
        with_keep_alive(api, database_url, 0.05) as quick,
        signed_in(quick, guest) as theirs,
        reading(theirs) as reader,
    ):
        (session,) = (await theirs.http.get("/api/v1/sessions")).json()["items"]
        assert (await api.http.delete(f"/api/v1/sessions/{session['id']}")).status_code == 200
        await reader.end()

"""Signing a browser in."""

from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import httpx2
import pytest

from api.auth import SESSION_COOKIE
from tests.api.station import Api

AS_A_BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
async def browser(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    """Not signed in, and without the admin token."""
    async with httpx2.AsyncClient(base_url=api.url, headers=AS_A_BROWSER) as browser:
        yield browser


async def new_link(api: Api) -> str:
    answer = await api.http.post("/api/sign-in-links")
    assert answer.status_code == 201
    return str(answer.json()["url"])


async def test_link_signs_in_once(api: Api, browser: httpx2.AsyncClient) -> None:
    link = await new_link(api)
    assert link.startswith(f"{api.url}/sign-in/")
    opened = await browser.get(link)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    cookie = SimpleCookie(opened.headers["set-cookie"])[SESSION_COOKIE]
    assert cookie["httponly"]
    assert cookie["samesite"] == "strict"
    assert cookie["path"] == "/"
    for path in ("/", "/docs", "/openapi.json", "/static/overview.js", "/api/nodes"):
        assert (await browser.get(path)).status_code == 200
    async with httpx2.AsyncClient(headers=AS_A_BROWSER) as another:
        again = await another.get(link)
    assert again.status_code == 401
    assert "used already" in again.text


async def test_browser_that_is_not_signed_in_is_told_what_to_do(browser: httpx2.AsyncClient) -> None:
    answer = await browser.get("/")
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "sign-in link" in answer.text


async def test_page_of_another_origin_cannot_use_the_session(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    node = await api.register()
    foreign = await browser.post(f"/api/nodes/{node['id']}/approve", headers={"Origin": "http://127.0.0.1:1"})
    assert (foreign.status_code, foreign.json()["code"]) == (403, "not_allowed")
    own = await browser.post(f"/api/nodes/{node['id']}/approve", headers={"Origin": api.url})
    assert own.status_code == 200


async def test_forged_session_is_worth_nothing(api: Api) -> None:
    async with httpx2.AsyncClient(base_url=api.url, cookies={SESSION_COOKIE: "forged"}) as browser:
        assert (await browser.get("/api/nodes")).status_code == 401


async def test_pages_load_nothing_from_elsewhere(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    for path in ("/", "/docs", "/static/overview.js", "/static/docs.js", "/static/nodesmith.css"):
        answer = await browser.get(path)
        assert "//" not in answer.text.replace("// ", ""), path
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"

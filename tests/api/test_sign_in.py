"""Browser sign-in."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from pathlib import Path

import httpx2
import pytest

from nodesmith.api.auth import SESSION_COOKIE, TLS_SESSION_COOKIE
from nodesmith.api.main import ApiServer
from nodesmith.runtime.listening import Encrypted, bind
from nodesmith.runtime.tls_trust import trusting
from nodesmith.services.access.callers import Access
from nodesmith.stack.certificates import Certificates
from nodesmith.store.clock import utc_now
from tests.api.station import Api, bearer

AS_A_BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
async def browser(api: Api) -> AsyncIterator[httpx2.AsyncClient]:
    """Not signed in, and without the admin token."""
    async with httpx2.AsyncClient(base_url=api.url, headers=AS_A_BROWSER, timeout=30) as browser:
        yield browser


async def new_link(api: Api) -> str:
    answer = await api.http.post("/api/v1/sign-in-links")
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
    for path in ("/", "/docs", "/openapi.json", "/static/overview.js", "/api/v1/nodes"):
        assert (await browser.get(path)).status_code == 200
    async with httpx2.AsyncClient(headers=AS_A_BROWSER, timeout=30) as another:
        again = await another.get(link)
    assert again.status_code == 401
    assert "used already" in again.text


async def test_browser_that_is_not_signed_in_gets_instructions(browser: httpx2.AsyncClient) -> None:
    answer = await browser.get("/")
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
    assert "This browser is not signed in." in answer.text
    assert "nodesmith sessions link" in answer.text
    assert (await browser.get("/static/nodesmith.css")).headers["content-type"].startswith("text/css")
    assert (await browser.get("/static/overview.js")).status_code == 401


async def test_page_of_another_origin_cannot_use_the_session(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    node = await api.register()
    foreign = await browser.post(f"/api/v1/nodes/{node['id']}/approve", headers={"Origin": "http://127.0.0.1:1"})
    assert (foreign.status_code, foreign.json()["code"]) == (403, "not_allowed")
    own = await browser.post(f"/api/v1/nodes/{node['id']}/approve", headers={"Origin": api.url})
    assert own.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
        {"Origin": "SELF", "Sec-Fetch-Site": "same-site"},
        {"Origin": "SELF", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_change_by_cookie_needs_proof_that_our_page_asked(
    api: Api, browser: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    await browser.get(await new_link(api))
    sent = {name: value.replace("SELF", api.url) for name, value in headers.items()}
    refused = await browser.post("/api/v1/sign-in-links", headers=sent)
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    own = {"Origin": api.url, "Sec-Fetch-Site": "same-origin"}
    assert (await browser.post("/api/v1/sign-in-links", headers=own)).status_code == 201


async def test_forged_session_is_refused(api: Api) -> None:
    async with httpx2.AsyncClient(base_url=api.url, cookies={SESSION_COOKIE: "forged"}, timeout=30) as browser:
        assert (await browser.get("/api/v1/nodes")).status_code == 401


async def test_pages_load_nothing_from_elsewhere(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    for path in ("/", "/docs", "/static/overview.js", "/static/docs.js", "/static/nodesmith.css"):
        answer = await browser.get(path)
        assert "//" not in answer.text.replace("// ", ""), path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"


# signing out


async def sign_out(browser: httpx2.AsyncClient, url: str) -> httpx2.Response:
    return await browser.post("/api/v1/sign-out", headers={"Origin": url})


async def test_signed_out_browser_opens_nothing_even_with_a_copy_of_its_cookie(
    api: Api, browser: httpx2.AsyncClient
) -> None:
    await browser.get(await new_link(api))
    copied = str(browser.cookies[SESSION_COOKIE])
    left = await sign_out(browser, api.url)
    assert left.json() == {"message": "signed out"}
    assert SESSION_COOKIE not in browser.cookies
    assert (await browser.get("/")).status_code == 401
    async with httpx2.AsyncClient(base_url=api.url, cookies={SESSION_COOKIE: copied}, timeout=30) as thief:
        assert (await thief.get("/api/v1/nodes")).status_code == 401
    reported = (await api.http.get("/api/v1/audit?action=sign-out")).json()["items"]
    assert reported[0]["actor"] == "admin"


async def test_only_this_browser_is_signed_out(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    async with httpx2.AsyncClient(base_url=api.url, timeout=30) as other:
        await other.get(await new_link(api))
        await sign_out(browser, api.url)
        assert (await other.get("/api/v1/nodes")).status_code == 200


async def test_token_is_not_signed_out(api: Api) -> None:
    refused = await api.http.post("/api/v1/sign-out")
    assert refused.status_code == 400
    assert "tokens revoke" in refused.text


async def test_page_of_another_origin_cannot_sign_out(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    assert (await sign_out(browser, "http://127.0.0.1:1")).status_code == 403
    assert (await browser.get("/api/v1/nodes")).status_code == 200


async def test_sessions_are_listed_and_ended_by_their_owner_and_by_admins(api: Api) -> None:
    tokens = {}
    for name in ("ann", "bob"):
        made = await api.http.post("/api/v1/tokens", json={"name": name, "role": "viewer"})
        tokens[name] = bearer(made.json()["token"])
    browsers = {name: httpx2.AsyncClient(base_url=api.url, timeout=30) for name in tokens}
    for name, browser in browsers.items():
        link = await api.http.post("/api/v1/sign-in-links", headers=tokens[name])
        await browser.get(link.json()["url"])

    async def seen(by: dict[str, str] | None = None) -> dict[str, str]:
        listed = (await api.http.get("/api/v1/sessions", headers=by)).json()["items"]
        return {session["actor"]: session["id"] for session in listed if session["actor"] in tokens}

    everybody = await seen()
    assert set(everybody) == {"ann", "bob"}
    assert set(await seen(tokens["ann"])) == {"ann"}
    assert set((await browsers["ann"].get("/api/v1/sessions")).json()["items"][0]) == {
        *("id", "actor", "role", "signed_in_at", "expires_at")
    }
    foreign = await api.http.delete(f"/api/v1/sessions/{everybody['bob']}", headers=tokens["ann"])
    assert (foreign.status_code, foreign.json()["code"]) == (404, "unknown_session")
    assert (await browsers["bob"].get("/api/v1/nodes")).status_code == 200
    assert (await api.http.delete(f"/api/v1/sessions/{everybody['ann']}", headers=tokens["ann"])).status_code == 200
    assert (await api.http.delete(f"/api/v1/sessions/{everybody['bob']}")).status_code == 200
    for browser in browsers.values():
        assert (await browser.get("/api/v1/nodes")).status_code == 401
        await browser.aclose()
    assert (await api.http.delete("/api/v1/sessions/nobody")).status_code == 404


async def test_session_id_grants_no_access(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    (newest, *_) = (await api.http.get("/api/v1/sessions")).json()["items"]
    async with httpx2.AsyncClient(base_url=api.url, cookies={SESSION_COOKIE: newest["id"]}, timeout=30) as thief:
        assert (await thief.get("/api/v1/nodes")).status_code == 401


async def test_new_admin_token_signs_out_the_browsers_of_the_old_one(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    session = str(browser.cookies[SESSION_COOKIE])
    access = api.deps.access
    assert await access.by_session(session)
    rotated = Access(access.tokens, access.browsers, "another-admin-token", utc_now)
    assert await rotated.by_session(session) is None


# headers


async def test_every_answer_has_the_headers_that_keep_browsers_safe(api: Api, browser: httpx2.AsyncClient) -> None:
    await browser.get(await new_link(api))
    for path in ("/", "/api/v1/nodes", "/healthz", "/nothing", "/artifacts/echo-1.tar.gz", "/static/nodesmith.css"):
        headers = (await browser.get(path)).headers
        assert headers["cache-control"] == "no-store", path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["referrer-policy"] == "no-referrer", path
        assert headers["cross-origin-resource-policy"] == "same-origin", path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "strict-transport-security" not in headers, "there is no TLS here"
        assert "server" not in headers, path


@asynccontextmanager
async def served_with_tls(api: Api, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    certificates = Certificates(folder)
    certificates.ensure("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.server, certificates.server_key)
    encrypted, stop = Encrypted(bind("127.0.0.1", 0), context), asyncio.Event()
    url = f"https://127.0.0.1:{encrypted.socket.getsockname()[1]}"
    server = ApiServer(api.deps, bind("127.0.0.1", 0), encrypted)
    serving = asyncio.create_task(server.run_until(stop))
    try:
        async with httpx2.AsyncClient(base_url=url, verify=trusting(certificates.ca), timeout=30) as browser:
            yield browser
    finally:
        stop.set()
        await serving


async def test_with_tls_the_cookie_and_the_headers_forbid_going_without(api: Api, tmp_path: Path) -> None:
    async with served_with_tls(api, tmp_path) as browser:
        path = httpx2.URL(await new_link(api)).path
        opened = await browser.get(path)
        assert opened.headers["strict-transport-security"] == "max-age=15552000"
        cookie = SimpleCookie(opened.headers["set-cookie"])[TLS_SESSION_COOKIE]
        assert (cookie["secure"], cookie["httponly"], cookie["samesite"]) == (True, True, "strict")
        assert (cookie["path"], cookie["domain"]) == ("/", "")
        assert (await browser.get("/api/v1/nodes")).status_code == 200
        assert (await sign_out(browser, str(browser.base_url).rstrip("/"))).status_code == 200
        assert TLS_SESSION_COOKIE not in browser.cookies


async def test_cookie_that_came_without_tls_opens_nothing_with_it(
    api: Api, browser: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """A page without TLS on the same host can set that one."""
    await browser.get(await new_link(api))
    session = str(browser.cookies[SESSION_COOKIE])
    async with served_with_tls(api, tmp_path) as secure:
        refused = await secure.get("/api/v1/nodes", headers={"Cookie": f"{SESSION_COOKIE}={session}"})
        assert refused.status_code == 401
        admitted = await secure.get("/api/v1/nodes", headers={"Cookie": f"{TLS_SESSION_COOKIE}={session}"})
        assert admitted.status_code == 200

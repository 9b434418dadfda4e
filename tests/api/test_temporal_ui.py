"""The Temporal Web UI behind our sign-in: access, changes by role, and what its server receives."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx2
import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from nodesmith.api.auth import SESSION_COOKIE
from nodesmith.api.dependencies import Dependencies
from nodesmith.api.main import ApiServer
from nodesmith.api.temporal_ui import RETURN_COOKIE, allowed_hosts, create_web_ui
from nodesmith.domain.access import Role
from nodesmith.runtime.listening import bind
from tests.api.station import ADMIN_TOKEN, Api, bearer, served
from tests.servers import TemporalForTests

AS_A_BROWSER = {"Accept": "text/html,application/xhtml+xml"}


@asynccontextmanager
async def web_ui(deps: Dependencies, server: str) -> AsyncIterator[str]:
    """The Web UI's port, with `server` behind it; gives its address."""
    listening, stop = bind("127.0.0.1", 0), asyncio.Event()
    port = listening.getsockname()[1]
    async with httpx2.AsyncClient(base_url=server, trust_env=False) as client:
        app = create_web_ui(deps, client, allowed_hosts("http://ui.test", port, ""))
        serving = asyncio.create_task(ApiServer(deps, listening, app=app).run_until(stop))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            stop.set()
            await serving


@pytest.fixture(scope="module")
async def ui(api: Api, temporal_server: TemporalForTests) -> AsyncIterator[str]:
    async with web_ui(api.deps, temporal_server.server.web_url) as url:
        yield url


@dataclass
class Recorder:
    """A server that answers every request alike, and keeps what it was sent."""

    port: int = 0
    requests: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        head = (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nAccess-Control-Allow-Origin: *\r\n"
            f"Set-Cookie: _csrf=theirs; Path=/\r\nSet-Cookie: {SESSION_COOKIE}=fixed; Path=/\r\n"
            "Connection: close\r\n\r\n{}"
        )
        writer.write(head.encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    kept = Recorder()
    server = await asyncio.start_server(kept.serve, "127.0.0.1", 0)
    kept.port = server.sockets[0].getsockname()[1]
    async with server:
        yield kept


async def session_of(api: Api, role: Role) -> str:
    """The cookie of a browser that is signed in with this role."""
    made = await api.http.post("/api/v1/tokens", json={"name": f"{role}-{secrets.token_hex(4)}", "role": role})
    link = await api.http.post("/api/v1/sign-in-links", headers=bearer(made.json()["token"]))
    async with httpx2.AsyncClient() as browser:
        opened = await browser.get(link.json()["url"])
    return opened.cookies[SESSION_COOKIE]


@asynccontextmanager
async def browser_of(api: Api, url: str, role: Role) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {**AS_A_BROWSER, "Cookie": f"{SESSION_COOKIE}={await session_of(api, role)}"}
    async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False) as browser:
        yield browser


@pytest.fixture
async def run_id(temporal_address: str) -> str:
    """A run that nobody works on."""
    client = await Client.connect(temporal_address)
    handle = await client.start_workflow("Anything", id=f"backend:n:{secrets.token_hex(6)}", task_queue="nobody")
    return handle.id


async def status_of(temporal_address: str, run_id: str) -> WorkflowExecutionStatus | None:
    return (await (await Client.connect(temporal_address)).get_workflow_handle(run_id).describe()).status


def terminate(run_id: str) -> str:
    return f"/api/v1/namespaces/default/workflows/{run_id}/terminate"


async def test_browser_without_a_session_gets_only_the_sign_in_page(ui: str) -> None:
    async with httpx2.AsyncClient(base_url=ui, trust_env=False) as stranger:
        page = await stranger.get("/namespaces/default/workflows?query=a%2Fb", headers=AS_A_BROWSER)
        data = await stranger.get("/api/v1/namespaces", headers={"Accept": "application/json"})
        change = await stranger.post(terminate("any"), headers={"Origin": ui})
        styles = await stranger.get("/static/nodesmith.css")
        restyled = await stranger.post("/static/nodesmith.css", headers={"Origin": ui})
        version = await stranger.get("/_app/version.json")
    assert page.status_code == 401
    assert 'href="/static/nodesmith.css"' in page.text
    assert (styles.status_code, styles.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert restyled.status_code == 401
    assert version.json() == {"version": ""}, "another than that of an open page, which then loads anew"
    assert "sign-in link" in page.text
    assert (data.status_code, data.json()["code"]) == (401, "not_signed_in")
    assert change.status_code == 401


@pytest.fixture(scope="module")
async def own(api: Api, ui: str) -> AsyncIterator[Api]:
    """The API that serves this Web UI."""
    async with served(replace(api.deps, temporal_ui_url=ui, serves_temporal_ui=True)) as own:
        yield own


async def test_sign_in_leads_back_to_the_page_that_was_asked_for(own: Api, ui: str) -> None:
    async with httpx2.AsyncClient(headers=AS_A_BROWSER, trust_env=False) as browser:
        await browser.get(f"{ui}/namespaces/default/workflows/backend%3An%3Ax?tab=a%2Fb")
        link = (await own.http.post("/api/v1/sign-in-links")).json()["url"]
        opened = await browser.get(link)
        assert opened.headers["location"] == f"{ui}/namespaces/default/workflows/backend%3An%3Ax?tab=a%2Fb"
        back = await browser.get(opened.headers["location"])
        assert back.status_code == 200
        assert RETURN_COOKIE not in browser.cookies
        assert (await browser.get(f"{own.url}/links.json")).json() == {"temporal_ui": ui}


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example/", "/\\evil.example", "https://evil.example/", "%2F%2Fevil.example"]
)
async def test_sign_in_leads_to_no_other_host(own: Api, elsewhere: str) -> None:
    async with httpx2.AsyncClient(trust_env=False) as browser:
        link = (await own.http.post("/api/v1/sign-in-links")).json()["url"]
        opened = await browser.get(link, headers={"Cookie": f"{RETURN_COOKIE}={elsewhere}"})
    assert opened.headers["location"] == "/"


async def test_viewer_reads_and_changes_nothing(api: Api, ui: str, temporal_address: str, run_id: str) -> None:
    async with browser_of(api, ui, Role.VIEWER) as viewer:
        page = await viewer.get("/namespaces/default/workflows")
        listed = await viewer.get("/api/v1/namespaces/default/workflows")
        refused = await viewer.post(terminate(run_id), json={}, headers={"Origin": ui})
        settings = await viewer.get("/api/v1/settings")
    assert page.status_code == listed.status_code == 200
    assert settings.json()["DisableWriteActions"] is True
    assert "<html" in page.text
    assert "executions" in listed.json()
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    assert await status_of(temporal_address, run_id) is WorkflowExecutionStatus.RUNNING


async def test_operator_terminates_a_run_and_the_audit_trail_says_so(
    api: Api, ui: str, temporal_address: str, run_id: str
) -> None:
    async with browser_of(api, ui, Role.OPERATOR) as operator:
        await operator.get("/")  # its own CSRF token comes with the page
        assert (await operator.get("/api/v1/settings")).json()["DisableWriteActions"] is False
        token = operator.cookies["_csrf"]
        headers = {"Origin": ui, "X-CSRF-Token": token, "Cookie": f"{operator.headers['cookie']}; _csrf={token}"}
        done = await operator.post(terminate(run_id), json={"reason": "stuck"}, headers=headers)
    assert done.status_code == 200, done.text
    assert await status_of(temporal_address, run_id) is WorkflowExecutionStatus.TERMINATED
    [entry], _ = await api.deps.audit.page(target=run_id)
    assert (entry.action, entry.reason) == ("temporal.terminate", "stuck")
    assert entry.actor.startswith("operator-")


@pytest.mark.parametrize(
    "path",
    ["/api/v1/namespaces", "/api/v1/namespaces/default/workflows/forged", "/api/v1/namespaces/default/schedules/s"],
)
async def test_operator_starts_no_run_and_touches_no_namespace(api: Api, ui: str, path: str) -> None:
    async with browser_of(api, ui, Role.OPERATOR) as operator:
        refused = await operator.post(path, json={}, headers={"Origin": ui})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")


BATCHES = "/api/v1/namespaces/default/batch-operations/b"


@pytest.mark.parametrize(
    "content",
    [
        b'{"deletionOperation": {}, "jobId": "b"}',
        b'{"deletion_operation": {}, "terminationOperation": {}}',
        rb'{"\u0064eletionOperation": {}}',
        b'{"updateWorkflowOptionsOperation": {}}',
        b"deletionOperation",
        b"[" * 100_000,
    ],
)
async def test_batch_deletes_no_runs_for_an_operator(api: Api, ui: str, content: bytes) -> None:
    """A single run is deleted by admins only, so a batch of deletions is theirs too."""
    async with browser_of(api, ui, Role.OPERATOR) as operator:
        refused = await operator.post(BATCHES, content=content, headers={"Origin": ui})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")


async def test_operator_terminates_runs_in_a_batch(api: Api, recorder: Recorder) -> None:
    async with (
        web_ui(api.deps, f"http://127.0.0.1:{recorder.port}") as url,
        browser_of(api, url, Role.OPERATOR) as operator,
    ):
        body = {"jobId": "b", "namespace": "default", "visibilityQuery": "x", "reason": "r", "identity": "i"}
        content = {**body, "terminationOperation": {"identity": "i"}}
        done = await operator.post(BATCHES, json=content, headers={"Origin": url})
        stopped = await operator.post(f"{BATCHES}/stop", json={"reason": "r"}, headers={"Origin": url})
    assert (done.status_code, stopped.status_code) == (200, 200)


async def test_change_whose_token_is_revoked_while_its_body_arrives_is_refused(api: Api, recorder: Recorder) -> None:
    name = f"thief-{secrets.token_hex(4)}"
    token = (await api.http.post("/api/v1/tokens", json={"name": name, "role": Role.OPERATOR})).json()["token"]

    async def revoked_halfway() -> AsyncIterator[bytes]:
        yield b"{"
        assert (await api.http.delete(f"/api/v1/tokens/{name}")).status_code == 200
        yield b"}"

    async with (
        web_ui(api.deps, f"http://127.0.0.1:{recorder.port}") as url,
        httpx2.AsyncClient(base_url=url, headers=bearer(token), trust_env=False) as thief,
    ):
        refused = await thief.post(terminate("x"), content=revoked_halfway())
    assert refused.status_code == 401
    assert not recorder.requests


async def test_its_server_sees_neither_cookie_nor_token_and_cannot_set_ours(api: Api, recorder: Recorder) -> None:
    async with web_ui(api.deps, f"http://127.0.0.1:{recorder.port}") as url:
        async with browser_of(api, url, Role.OPERATOR) as operator:
            session = operator.headers["cookie"]
            headers = {"Cookie": f"a=b; {session}; _csrf=mine", "Origin": url}
            answers = [await operator.get("/", headers=headers), await operator.post(terminate("r"), headers=headers)]
        async with httpx2.AsyncClient(base_url=url, headers=bearer(ADMIN_TOKEN), trust_env=False) as program:
            answers.append(await program.get("/api/v1/namespaces?a=%2F"))
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    sent = "".join(recorder.requests).lower()
    assert session.partition("=")[2].lower() not in sent
    assert ADMIN_TOKEN not in sent
    assert "cookie: _csrf=mine\r\n" in sent
    assert "a=b" not in sent
    assert "get /api/v1/namespaces?a=%2f http" in sent
    for answer in answers:
        assert SESSION_COOKIE not in answer.headers["set-cookie"]
        assert "access-control-allow-origin" not in answer.headers
        assert "connect-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "foreign",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_foreign_host_or_origin_is_refused(
    api: Api, recorder: Recorder, method: str, foreign: dict[str, str]
) -> None:
    async with web_ui(api.deps, f"http://127.0.0.1:{recorder.port}") as url, browser_of(api, url, Role.ADMIN) as admin:
        refused = await admin.request(method, terminate("r"), headers={"Origin": url, **foreign})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_allowed")
    assert recorder.requests == []


async def test_change_by_cookie_needs_an_origin(api: Api, recorder: Recorder) -> None:
    async with web_ui(api.deps, f"http://127.0.0.1:{recorder.port}") as url, browser_of(api, url, Role.ADMIN) as admin:
        refused = await admin.post(terminate("r"))
    assert refused.status_code == 403
    assert recorder.requests == []


async def test_files_whose_names_change_with_their_content_are_kept_by_browsers(api: Api, ui: str) -> None:
    """A page has 230 of them."""
    async with browser_of(api, ui, Role.VIEWER) as viewer:
        page = await viewer.get("/")
        named = re.findall(r"/_app/immutable/[\w./-]+\.js", page.text)
        answers = [await viewer.get(path) for path in (*named, "/_app/immutable/none.js", "/api/v1/settings")]
    kept = [answer.headers["cache-control"] for answer in (page, *answers)]
    assert named
    assert kept == ["no-store", *["private, max-age=31536000, immutable"] * len(named), "no-store", "no-store"]


async def test_web_ui_that_is_away_is_named(api: Api) -> None:
    async with web_ui(api.deps, "http://127.0.0.1:1") as url, browser_of(api, url, Role.VIEWER) as viewer:
        answer = await viewer.get("/")
    assert answer.status_code == 503
    assert "Temporal Web UI does not answer" in answer.json()["detail"]

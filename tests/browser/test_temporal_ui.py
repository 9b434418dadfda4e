"""The Temporal Web UI behind our sign-in and our policy, in a real browser."""

import secrets
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from playwright.async_api import Page, expect

from nodesmith.domain.access import Role
from tests.browser.conftest import LISTEN
from tests.browser.test_pages import expect_overview, expect_sign_in
from tests.browser.visits import CHROMIUM, Visitors
from tests.e2e.fleet import Fleet

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="2026-11-18: Debian's chromium is not installed; tools/test-programs installs it"
)
SEND = """async ([path, method]) => {
    const token = document.cookie.match(/_csrf=([^;]+)/)?.[1] ?? "";
    const headers = { "Content-Type": "application/json", "X-CSRF-Token": token };
    const answer = await fetch(path, { method, headers, body: "{}" });
    return [answer.status, (await answer.json()).code];
}"""


def address(fleet: Fleet, host: str = "127.0.0.1") -> str:
    """Return the URL of the Web UI."""
    return f"{'https' if host == LISTEN else 'http'}://{host}:{fleet.machine.base + 2}"


@pytest.fixture(scope="module")
async def installed(fleet: Fleet) -> str:
    """Run an install and return the id of its completed workflow."""
    operation = await fleet.ended(await fleet.accepted("agent-1", backend="echo"))
    assert operation["state"] == "succeeded"
    return str(operation["workflow_id"])


async def expect_history(page: Page) -> None:
    """Expect the history of a completed run, with its input and its events."""
    await expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    await expect(page.get_by_text("Workflow Execution Completed").first).to_be_visible()
    await expect(page.get_by_text('"op_id"').first).to_be_visible()


async def test_workflows_are_listed(fleet: Fleet, visitors: Visitors, installed: str) -> None:
    visit = await visitors.signed_in(Role.VIEWER)
    await visit.page.get_by_role("link", name="Temporal Web UI").click()
    await expect(visit.page.get_by_role("link", name=installed).first).to_be_visible()
    await visit.look("workflows")
    assert visit.page.url.startswith(f"{address(fleet)}/namespaces/default/workflows")
    assert visit.faults == []
    assert visit.hosts == {urlsplit(fleet.url).netloc, urlsplit(address(fleet)).netloc}
    await expect(visit.page.get_by_role("link", name="Start Workflow")).to_have_count(0)


async def test_installation_is_followed_from_the_overview_to_its_history(fleet: Fleet, visitors: Visitors) -> None:
    visit = await visitors.signed_in(Role.VIEWER)
    await expect_overview(visit.page)
    await fleet.accepted("agent-2", backend="echo", force=True)
    row = visit.page.get_by_role("row", name="echo")
    await expect(row).to_contain_text("succeeded")
    await visit.look("operation")
    await row.get_by_role("link", name="history").click()
    await expect_history(visit.page)
    await visit.look("history")
    assert visit.faults == []
    assert visit.hosts == {urlsplit(fleet.url).netloc, urlsplit(address(fleet)).netloc}


async def test_history_is_opened_with_tls_where_the_browser_is_signed_in_with_tls(
    fleet: Fleet, visitors: Visitors
) -> None:
    link = httpx2.URL(await visitors.link(Role.VIEWER)).copy_with(scheme="https", host=LISTEN)
    visit = await visitors.stranger(ignore_https_errors=True)
    await visit.page.goto(str(link))
    await expect_overview(visit.page)
    await fleet.accepted("agent-2", backend="echo", force=True)
    await visit.page.get_by_role("row", name="echo").get_by_role("link", name="history").click()
    await expect_history(visit.page)
    assert visit.faults == []
    assert visit.hosts == {f"{LISTEN}:{fleet.machine.base}", urlsplit(address(fleet, LISTEN)).netloc}


@pytest.mark.parametrize("verb", ["terminate", "cancel", "reset", "signal/stop"])
async def test_page_of_a_viewer_changes_no_run(fleet: Fleet, visitors: Visitors, verb: str) -> None:
    visit = await visitors.signed_in(Role.VIEWER)
    await visit.page.goto(f"{address(fleet)}/favicon.ico")  # any page of that origin
    path = f"/api/v1/namespaces/default/workflows/fleet-monitor/{verb}"
    assert await visit.page.evaluate(SEND, [path, "POST"]) == [403, "not_allowed"]


async def test_request_of_an_operator_is_forwarded(fleet: Fleet, visitors: Visitors) -> None:
    """The viewer's request reaches Temporal itself, which has no such run."""
    visit = await visitors.signed_in(Role.OPERATOR)
    await visit.page.goto(f"{address(fleet)}/namespaces/default/workflows")
    await expect(visit.page.get_by_text("fleet-monitor").first).to_be_visible()
    path = f"/api/v1/namespaces/default/workflows/none-{secrets.token_hex(4)}/terminate"
    status, _ = await visit.page.evaluate(SEND, [path, "POST"])
    assert status == 404


async def test_web_ui_without_session_redirects_through_sign_in(
    fleet: Fleet, visitors: Visitors, installed: str
) -> None:
    visit = await visitors.stranger()
    wanted = f"{address(fleet)}/namespaces/default/workflows/{quote(installed, safe='')}"
    await visit.page.goto(wanted)
    await expect_sign_in(visit.page)
    await visit.look("sign-in-temporal")
    assert visit.faults == [f"401: GET {urlsplit(wanted).path}"]
    assert visit.hosts == {urlsplit(wanted).netloc}
    visit.faults.clear()
    await visit.page.goto(await visitors.link(Role.VIEWER))
    await expect(visit.page.get_by_text("BackendOperation").first).to_be_visible()
    assert visit.page.url.startswith(wanted)
    assert visit.faults == []


async def test_open_page_shows_sign_in_after_sign_out(fleet: Fleet, visitors: Visitors) -> None:
    """Requests of its next page are refused; it used to show "500, Internal Error"."""
    visit = await visitors.signed_in(Role.VIEWER)
    await visit.page.goto(f"{address(fleet)}/namespaces/default/workflows")
    await expect(visit.page.get_by_role("link", name="fleet-monitor").first).to_be_visible()
    assert (await visit.context.request.post(f"{fleet.url}/api/v1/sign-out", headers={"Origin": fleet.url})).ok
    await visit.page.get_by_role("link", name="Schedules").click()
    await expect_sign_in(visit.page)
    await visit.page.goto(await visitors.link(Role.VIEWER))
    await visit.page.wait_for_url(f"{address(fleet)}/namespaces/default/schedules")

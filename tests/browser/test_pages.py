"""The overview, sign-in and sign-out, and the API documentation in a real browser."""

from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.async_api import Page, Route, expect

from nodesmith.api.auth import SESSION_COOKIE, TLS_SESSION_COOKIE
from nodesmith.domain.access import Role
from tests.browser.conftest import LISTEN
from tests.browser.visits import CHROMIUM, Visitors
from tests.e2e.fleet import Fleet

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="2026-11-18: Debian's chromium is not installed; tools/test-programs installs it"
)


async def expect_overview(page: Page) -> None:
    """Expect a live overview with both nodes."""
    await expect(page.locator("#link")).to_have_text("live")
    for name in ("agent-1", "agent-2"):
        await expect(page.get_by_role("row", name=name)).to_contain_text("healthy")


async def expect_sign_in(page: Page) -> None:
    """Expect the sign-in page with its instructions and styles."""
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await expect(page.get_by_text("nodesmith sessions link")).to_be_visible()
    await expect(page.locator(".card")).to_have_css("border-radius", "8px")


async def test_sign_in_link_opens_the_overview(fleet: Fleet, visitors: Visitors) -> None:
    visit = await visitors.signed_in(Role.VIEWER)
    await expect_overview(visit.page)
    assert visit.page.url == f"{fleet.url}/"
    await visit.look("overview")
    assert visit.faults == []
    assert visit.hosts == {urlsplit(fleet.url).netloc}


async def test_link_in_a_page_of_another_site_signs_in_after_continue(visitors: Visitors) -> None:
    """A strict cookie is not sent after navigation from another site, even after our own redirect."""
    visit = await visitors.stranger()
    link = await visitors.link(Role.VIEWER)

    async def mail(route: Route) -> None:
        await route.fulfill(content_type="text/html", body=f'<a href="{link}">sign in</a>')

    await visit.context.route("http://mail.example/", mail)
    await visit.page.goto("http://mail.example/")
    await visit.page.get_by_role("link", name="sign in").click()
    await expect_sign_in(visit.page)
    await visit.page.get_by_role("link", name="Continue").click()
    await expect_overview(visit.page)
    assert visit.faults == ["401: GET /"]


async def test_documentation_of_the_api_is_drawn(fleet: Fleet, visitors: Visitors) -> None:
    visit = await visitors.signed_in(Role.VIEWER)
    await visit.page.get_by_role("link", name="API").click()
    await expect(visit.page.get_by_text("/api/v1/nodes", exact=True).first).to_be_visible()
    await visit.look("docs")
    assert visit.faults == []
    assert visit.hosts == {urlsplit(fleet.url).netloc}


async def test_sign_out_invalidates_the_old_cookie(fleet: Fleet, visitors: Visitors) -> None:
    visit = await visitors.signed_in(Role.VIEWER)
    await expect_overview(visit.page)
    (old,) = [cookie for cookie in await visit.context.cookies() if cookie.get("name") == SESSION_COOKIE]
    await visit.page.get_by_role("button", name="Sign out").click()
    await expect_sign_in(visit.page)
    await visit.look("signed-out")
    assert SESSION_COOKIE not in {cookie.get("name") for cookie in await visit.context.cookies()}
    assert set(visit.faults) <= {"401: GET /", "401: GET /api/v1/nodes", "401: GET /api/v1/events"}, (
        "after the sign-out"
    )
    thief = await visitors.stranger()
    await thief.context.add_cookies([{"name": SESSION_COOKIE, "value": str(old.get("value")), "url": fleet.url}])
    await thief.page.goto(f"{fleet.url}/")
    await expect_sign_in(thief.page)


async def test_browser_without_session_is_asked_to_sign_in(fleet: Fleet, visitors: Visitors) -> None:
    visit = await visitors.stranger()
    await visit.page.goto(f"{fleet.url}/")
    await expect_sign_in(visit.page)
    await visit.look("sign-in")
    assert visit.faults == ["401: GET /"]
    assert visit.hosts == {urlsplit(fleet.url).netloc}


async def test_with_tls_the_browser_keeps_the_session_and_loses_it_at_sign_out(
    fleet: Fleet, visitors: Visitors
) -> None:
    """The cookie's name has a prefix for which browsers enforce extra conditions."""
    link = httpx2.URL(await visitors.link(Role.VIEWER)).copy_with(scheme="https", host=LISTEN)
    visit = await visitors.stranger(ignore_https_errors=True)
    await visit.page.goto(str(link))
    await expect_overview(visit.page)
    assert [cookie.get("name") for cookie in await visit.context.cookies()] == [TLS_SESSION_COOKIE]
    assert visit.faults == []
    await visit.page.get_by_role("button", name="Sign out").click()
    await expect_sign_in(visit.page)
    assert await visit.context.cookies() == []

"""A monitored browser profile: records errors of its pages and the hosts of their requests."""

import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, WebError

from nodesmith.domain.access import Role
from tests.e2e.fleet import Fleet

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 60_000
REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
    console.error(`policy: ${event.effectiveDirective} forbids ${event.blockedURI}`));
"""


@dataclass
class Visit:
    """One profile with one page; `faults` collects the errors of its pages."""

    page: Page
    context: BrowserContext
    screenshots: Path
    hosts: set[str] = field(default_factory=set)
    """hosts with ports to which its pages sent requests"""
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.context.on("console", self._on_console)
        self.context.on("weberror", self._on_error)
        self.context.on("request", self._on_request)
        self.context.on("requestfailed", self._on_failure)
        self.context.on("response", self._on_response)

    async def look(self, name: str) -> None:
        """Save a screenshot of the page for inspection."""
        await self.page.screenshot(path=self.screenshots / f"{name}.png")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(
            "Failed to load resource"
        ):  # reported by _on_response
            self.faults.append(f"console: {message.text}")

    def _on_error(self, error: WebError) -> None:
        self.faults.append(f"script: {error.error}")

    def _on_request(self, request: Request) -> None:
        if request.url.startswith("http"):
            self.hosts.add(urlsplit(request.url).netloc)

    def _on_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # navigation aborts pending requests
            self.faults.append(f"{request.failure}: {request.method} {request.url}")

    def _on_response(self, response: Response) -> None:
        if not response.ok and response.status >= 400:
            self.faults.append(f"{response.status}: {response.request.method} {urlsplit(response.url).path}")


@dataclass
class Visitors:
    """Creates profiles and signs them in."""

    fleet: Fleet
    browser: Browser
    screenshots: Path
    visits: list[Visit] = field(default_factory=list)

    async def stranger(self, **options: Any) -> Visit:
        context = await self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        await context.add_init_script(REPORT_VIOLATIONS)
        visit = Visit(await context.new_page(), context, self.screenshots)
        visit.watch()
        self.visits.append(visit)
        return visit

    async def signed_in(self, role: Role) -> Visit:
        """Return a signed-in profile whose page shows the overview."""
        visit = await self.stranger()
        await visit.page.goto(await self.link(role))
        return visit

    async def link(self, role: Role) -> str:
        """Create a sign-in link for a user with this role."""
        body = {"name": f"{role}-{secrets.token_hex(4)}", "role": role}
        made = (await self.fleet.http.post("/api/v1/tokens", json=body)).json()
        asked = await self.fleet.http.post(
            "/api/v1/sign-in-links", headers={"Authorization": f"Bearer {made['token']}"}
        )
        url: str = asked.json()["url"]
        return url

    async def leave(self) -> None:
        for visit in self.visits:
            await visit.context.close()

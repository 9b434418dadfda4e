"""One system and one browser for all page tests; each test has its own profile."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, async_playwright, expect

from tests.browser.visits import CHROMIUM, PATIENCE_MS, Visitors
from tests.e2e.fleet import Fleet
from tests.stack.commands import Machine

LISTEN = "127.0.0.2"
"""a second address of this machine, where the system uses TLS as for other machines"""


@pytest.fixture(scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    machine = Machine(tmp_path_factory.mktemp("browser") / "home")
    await asyncio.to_thread(machine.up, "--listen", LISTEN, agents=2)
    try:
        fleet = Fleet(machine)
        yield fleet
        await fleet.http.aclose()
    finally:
        await asyncio.to_thread(machine.down)


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        # Chromium's own sandbox refuses to work for root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        await browser.close()


@pytest.fixture
async def visitors(
    fleet: Fleet, chromium: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Visitors]:
    visitors = Visitors(fleet, chromium, tmp_path_factory.mktemp("screenshots"))
    yield visitors
    await visitors.leave()

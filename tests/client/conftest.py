"""A scripted API, and one driver for each of the two clients: every test of this folder runs with both."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.client.driver import Driver, open_driver
from tests.fakes.scripted_api import ScriptedApi, scripted_api


@pytest.fixture
def script() -> Iterator[ScriptedApi]:
    with scripted_api() as script:
        yield script


@pytest.fixture(params=["Client", "AsyncClient"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def driver(script: ScriptedApi, kind: str) -> AsyncIterator[Driver]:
    async with open_driver(kind, script.url) as driver:
        yield driver

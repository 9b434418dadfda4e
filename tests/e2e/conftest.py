"""One stack for all end-to-end tests; each asserts on its own operations and backends only."""

from collections.abc import AsyncIterator

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.slow_source import SlowSource, slow_source
from tests.stack.commands import Machine


@pytest.fixture(scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    machine = Machine(tmp_path_factory.mktemp("e2e") / "home")
    machine.up(agents=3)
    try:
        fleet = Fleet(machine)
        yield fleet
        await fleet.http.aclose()
    finally:
        machine.down()


@pytest.fixture
async def source() -> AsyncIterator[SlowSource]:
    async with slow_source() as source:
        yield source

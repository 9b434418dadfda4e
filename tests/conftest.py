"""Servers, started once a run; each test brings its own database, subjects or task queue."""

import gc
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

import pytest
import structlog

from tests import servers
from tests.servers import NatsForTests, PostgresForTests, TemporalForTests


def pytest_configure() -> None:
    """A shell has its background jobs ignore Ctrl-C, and children inherit that; some tests press it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class NatsFactory(Protocol):
    async def __call__(self) -> NatsForTests: ...


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """The default draws every local variable of every frame: eleven seconds for one logged error."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])


@pytest.fixture(scope="module", autouse=True)
def collect_garbage() -> Iterator[None]:
    """A leak is blamed on the module where it arises."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
async def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PostgresForTests]:
    async with servers.postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsForTests]:
    """Shared: never kill or restart this one."""
    async with servers.nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def private_nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsFactory]:
    """Start a server of one's own: `server = await private_nats()`; it may be killed and restarted."""
    async with AsyncExitStack() as stack:

        async def start() -> NatsForTests:
            server: AbstractAsyncContextManager[NatsForTests] = servers.nats(tmp_path_factory.mktemp("nats"))
            return await stack.enter_async_context(server)

        yield start


@pytest.fixture(scope="session")
async def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TemporalForTests]:
    async with servers.temporal(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture(scope="session")
def temporal_address(temporal_server: TemporalForTests) -> str:
    """The dev server with the stack's own flags, skippable time and our search attributes."""
    return temporal_server.server.address

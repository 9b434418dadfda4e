"""Starts the real servers once per run; each test uses its own database, subjects or task queue."""

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

import pytest
import structlog

from tests import servers, sources
from tests.servers import NatsForTests, PostgresForTests, TemporalForTests


def pytest_configure() -> None:
    """Restore SIGINT, which shells disable for background jobs and children inherit, because some tests send it.

    Also allow sources on this machine, which are refused by default.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(sources.ENVIRONMENT)


class NatsFactory(Protocol):
    async def __call__(self) -> NatsForTests: ...


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Log plain tracebacks: the default prints every local variable, which takes eleven seconds per error."""
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])


@pytest.fixture(scope="module", autouse=True)
def collect_garbage() -> Iterator[None]:
    """Collect garbage after each module, so that a leak is reported in the module that caused it."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
async def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PostgresForTests]:
    async with servers.postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="session")
async def nats_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsForTests]:
    """The shared server: tests must not kill or restart it."""
    async with servers.nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def private_nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsFactory]:
    """Start a private server with `server = await private_nats()`; the test may kill and restart it."""
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
    """Address of a dev server with the stack's flags, time skipping and our search attributes."""
    return temporal_server.server.address

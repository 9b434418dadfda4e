"""Real servers for tests: the stack's own, on free ports, in a folder of the test run."""

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bus.credentials import CredentialIssuer, Trust, new_trust
from stack import servers
from stack.child import Child
from stack.nats import NatsServer
from stack.postgres import PostgresServer
from stack.servers import LOOPBACK
from stack.temporal import TemporalServer

_DISPOSABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class PostgresForTests:
    """A cluster; each test module asks for a database of its own."""

    server: PostgresServer
    child: Child

    def url(self, database: str) -> str:
        return self.server.url(database)

    async def create_database(self, name: str = "", *, template: str = "template1") -> str:
        """Make a database (a copy of `template`, 20 ms) and return its url."""
        name = name or f"test_{secrets.token_hex(6)}"
        await self.server.create_database(name, template=template)
        return self.url(name)


@dataclass
class NatsForTests:
    """A NATS server with keys of its own; `kill` and `restart` are for private instances only."""

    server: NatsServer
    trust: Trust
    issuer: CredentialIssuer
    child: Child

    @property
    def url(self) -> str:
        return self.server.url

    async def kill(self) -> None:
        """As kill -9 does it."""
        self.child.kill()
        await self.child.wait()

    async def restart(self) -> None:
        """Stop it if it runs, and start it again on the same port with the same keys."""
        await self.child.stop()
        self.child = await servers.start(self.server)


@dataclass
class TemporalForTests:
    server: TemporalServer
    child: Child = field(repr=False)


@asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[PostgresForTests]:
    server = PostgresServer(
        folder=folder / "postgres",
        port=free_port(),
        password=secrets.token_urlsafe(16),
        log=folder / "postgres.log",
        settings=_DISPOSABLE,
    )
    async with servers.running(server) as child:
        yield PostgresForTests(server, child)


@asynccontextmanager
async def nats(folder: Path) -> AsyncIterator[NatsForTests]:
    trust = new_trust()
    server = NatsServer(folder=folder, port=free_port(), trust=trust, log=folder / "nats.log")
    running = NatsForTests(server, trust, CredentialIssuer(trust.account_seed), await servers.start(server))
    try:
        yield running
    finally:
        await running.child.stop()


@asynccontextmanager
async def temporal(folder: Path, **settings: str) -> AsyncIterator[TemporalForTests]:
    """With the stack's own settings, and time that tests can skip; `settings` are more of the dynamic configuration."""
    server = TemporalServer(
        database=folder / "temporal.db",
        port=free_port(),
        ui_port=free_port(),
        http_port=free_port(),
        metrics_port=free_port(),
        log=folder / "temporal.log",
        dynamic_config={"frontend.WorkflowTimeSkippingEnabled": "true", **settings},
    )
    async with servers.running(server) as child:
        yield TemporalForTests(server, child)

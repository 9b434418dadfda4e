"""Real servers for tests: the stack's embedded servers on free ports, in a folder of the test run."""

import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from nodesmith.bus.nats_credentials import CredentialIssuer, Trust, new_trust
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.domain.node import NatsCredential, NodeKey, Protocol
from nodesmith.stack.processes.child import Child
from nodesmith.stack.servers import embedded
from nodesmith.stack.servers.embedded import LOOPBACK
from nodesmith.stack.servers.nats import NatsServer
from nodesmith.stack.servers.postgres import PostgresServer
from nodesmith.stack.servers.temporal import TemporalServer

_DISPOSABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class PostgresForTests:
    """A PostgreSQL cluster; each test module creates its own database."""

    server: PostgresServer
    child: Child

    def url(self, database: str) -> str:
        return self.server.url(database)

    async def create_database(self, name: str = "", *, template: str = "template1") -> str:
        """Create a database as a copy of `template` (20 ms) and return its URL."""
        name = name or f"test_{secrets.token_hex(6)}"
        await self.server.create_database(name, template=template)
        return self.url(name)


class IssuerForTests(CredentialIssuer):
    """Creates one key per node, as an agent does, and stores all public keys, as the registry does."""

    def __init__(self, account_seed: str) -> None:
        super().__init__(account_seed)
        self.keys: dict[str, NodeKey] = {}
        self._made: dict[str, KeyPair] = {}

    def node_credential(
        self, node_id: str, *, lifetime: timedelta, user: str = "", protocol: int = Protocol.NODESMITH
    ) -> NatsCredential:
        key = self._made.setdefault(node_id, KeyPair.create(Role.USER))
        self.keys[node_id] = NodeKey(Protocol(protocol), user or key.public)
        made = super().node_credential(node_id, lifetime=lifetime, user=user or key.public)
        return made if user else replace(made, seed=key.seed)

    async def keys_of(self, node_ids: Sequence[str]) -> dict[str, NodeKey]:
        return {node_id: self.keys[node_id] for node_id in node_ids if node_id in self.keys}


@dataclass
class NatsForTests:
    """A NATS server with its own keys; `kill` and `restart` are for private instances only."""

    server: NatsServer
    trust: Trust
    issuer: IssuerForTests
    child: Child

    @property
    def url(self) -> str:
        return self.server.url

    async def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self.child.kill()
        await self.child.wait()

    async def restart(self) -> None:
        """Stop the server if it runs, and start it again on the same port with the same keys."""
        await self.child.stop()
        self.child = await embedded.start(self.server)


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
    async with embedded.running(server) as child:
        yield PostgresForTests(server, child)


@asynccontextmanager
async def nats(folder: Path) -> AsyncIterator[NatsForTests]:
    trust = new_trust()
    server = NatsServer(folder=folder, port=free_port(), trust=trust, log=folder / "nats.log")
    running = NatsForTests(server, trust, IssuerForTests(trust.account_seed), await embedded.start(server))
    try:
        yield running
    finally:
        await running.child.stop()


@asynccontextmanager
async def temporal(folder: Path, **settings: str) -> AsyncIterator[TemporalForTests]:
    """Run a server with the stack's settings and time skipping; `settings` extends the dynamic configuration."""
    server = TemporalServer(
        database=folder / "temporal.db",
        port=free_port(),
        web_port=free_port(),
        metrics_port=free_port(),
        log=folder / "temporal.log",
        dynamic_config={"frontend.WorkflowTimeSkippingEnabled": "true", **settings},
    )
    async with embedded.running(server) as child:
        yield TemporalForTests(server, child)

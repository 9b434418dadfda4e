"""Fixtures for use cases on the real store and the real Temporal server; only the node is simulated."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client

from nodesmith.bus.credentials import CredentialIssuer, new_trust
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.contracts.http.nodes import RegisterRequest
from nodesmith.contracts.http.sources import SourceAccess
from nodesmith.contracts.temporal.operations import Policy
from nodesmith.domain.artifact import Artifact
from nodesmith.domain.node import Node, Protocol
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.entries import Entry
from nodesmith.gallery.signatures import PublishedSignatures
from nodesmith.gallery.tags import RegistryTags
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import TemporalRuns, connect
from nodesmith.services.access.invites import Invites, JoinAddress
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.registration import Registration
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.artifact_check import ArtifactCheck
from nodesmith.services.operations.intents import Intents, UriRules
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.operations.orders import Orders
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.access.invites import Invites as InviteTable
from nodesmith.store.clock import Clock
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.lifecycle import NodeLife
from nodesmith.store.nodes.nats_credentials import NatsCredentials
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.orders import OrderTable
from tests.databases import migrated_template, opened
from tests.orders import shared_keyring
from tests.servers import PostgresForTests
from tests.services.links import SimulatedPresence, SimulatedRevocation
from tests.sources import LOCAL

URIS = UriRules(frozenset({"file", "https", "oci"}), sources=LOCAL)

TOKEN = "the-shared-registration-token"

Join = Callable[..., Awaitable[Node]]


async def no_access(_host: str) -> SourceAccess | None:
    return None


def a_nats_key() -> str:
    return KeyPair.create(Role.USER).public


def now() -> datetime:
    return datetime.now(UTC)


def artifact_check() -> ArtifactCheck:
    return ArtifactCheck(PublishedSignatures(no_access, LOCAL), now)


@pytest.fixture(scope="module")
async def database(postgres_server: PostgresForTests) -> AsyncIterator[Database]:
    url = await postgres_server.create_database(template=await migrated_template(postgres_server))
    async with opened(url) as database:
        yield database


@pytest.fixture(scope="session")
async def client(temporal_address: str) -> Client:
    return await connect(ControlSettings(temporal_address=temporal_address))


@pytest.fixture
def runs(client: Client) -> TemporalRuns:
    """On a task queue without a worker, so that started runs stay open."""
    return TemporalRuns(client, queue=f"test-{uuid.uuid4()}")


@pytest.fixture
def nodes(database: Database) -> Nodes:
    return Nodes(database)


@pytest.fixture
def operations(database: Database) -> OperationTable:
    return OperationTable(database)


@pytest.fixture
def life(database: Database) -> NodeLife:
    return NodeLife(database)


@pytest.fixture
def presence() -> SimulatedPresence:
    return SimulatedPresence()


@pytest.fixture
def lifecycle(nodes: Nodes, life: NodeLife, runs: TemporalRuns, presence: SimulatedPresence) -> Lifecycle:
    return Lifecycle(nodes, life, runs, presence, now, SimulatedRevocation())


def invites_on(database: Database, clock: Clock = now) -> Invites:
    join_address = JoinAddress("https://10.0.0.5:8900", "", "", shared_keyring())
    return Invites(InviteTable(database), Labels(database), AuditTrail(database), join_address, clock)


def registration_on(database: Database, presence: SimulatedPresence, clock: Clock = now) -> Registration:
    return Registration(
        nodes=Nodes(database, clock=clock),
        claims=NodeLife(database),
        presence=presence,
        invites=invites_on(database, clock),
        trail=AuditTrail(database, clock=clock),
        issuer=CredentialIssuer(new_trust().account_seed),
        nats_credentials=NatsCredentials(database),
        revocation=SimulatedRevocation(),
        registration_token=TOKEN,
        nats_url="nats://127.0.0.1:4222",
        credential_lifetime=timedelta(hours=24),
        auto_approve=False,
        max_pending=100_000,
        localai_workers=True,
        clock=clock,
        trusted=shared_keyring(),
        orders=OrderTable(database),
    )


def orders_on(database: Database) -> Orders:
    return Orders(shared_keyring(), OrderTable(database), OperationTable(database), now)


@pytest.fixture
def invites(database: Database) -> Invites:
    return invites_on(database)


@pytest.fixture
def registration(database: Database, presence: SimulatedPresence) -> Registration:
    return registration_on(database, presence)


@pytest.fixture
def join(registration: Registration, nodes: Nodes) -> Join:
    """Register a Nodesmith node, approved by default."""

    async def joined(
        *, approved: bool = True, node_type: str = "backend", protocol: Protocol = Protocol.NODESMITH
    ) -> Node:
        request = RegisterRequest(
            name=f"node-{uuid.uuid4()}",
            protocol=protocol,
            address="10.0.0.7:50051" if protocol is Protocol.LOCALAI else "",
            machine_id="m1",
            node_type=node_type,
            nats_key=a_nats_key(),
        )
        node_id = (await registration.register(request, bearer=TOKEN)).id
        if approved:
            await registration.approve(node_id)
        node = await nodes.find(node_id)
        assert node is not None
        return node

    return joined


@pytest.fixture
def admission(database: Database, nodes: Nodes, operations: OperationTable, runs: TemporalRuns) -> Admission:
    echo = Artifact(name="echo", version="1", uri="/artifacts/echo-1.tar.gz", sha256="a" * 64, size=1)
    catalogue = Catalogue([Entry("builtin", echo), Entry("builtin", replace(echo, version="2"))])
    return Admission(
        nodes=nodes,
        inventory=InventoryTable(database),
        operations=operations,
        lock=OperationLock(operations, runs, orders_on(database)),
        orders=orders_on(database),
        intents=Intents(catalogue, URIS, RegistryTags(no_access, LOCAL), artifact_check()),
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )

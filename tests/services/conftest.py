"""Use cases on the real store and the real Temporal server; only the node at the far end is played."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client

from bus.credentials import CredentialIssuer, new_trust
from contracts.node_http import NodeView, RegisterRequest
from contracts.sources import SourceAccess
from contracts.temporal import Policy
from domain.artifact import Artifact
from domain.node import Protocol
from gallery.catalogue import Catalogue
from gallery.entries import Entry
from gallery.tags import RegistryTags
from runtime.settings import ControlSettings
from runtime.temporal import TemporalRuns, connect
from services.admission import Admission
from services.gate import Gate
from services.intents import Intents, UriRules
from services.invites import Door, Invites
from services.lifecycle import Lifecycle
from services.registration import Registration
from store.audit import AuditTrail
from store.clock import Clock
from store.database import Database
from store.idempotency import IdempotencyKeys
from store.inventory import InventoryTable
from store.invites import Invites as InviteTable
from store.labels import Labels
from store.life import NodeLife
from store.nodes import Nodes
from store.operations import OperationTable
from store.voices import Voices
from tests.databases import migrated_template, opened
from tests.servers import PostgresForTests
from tests.services.links import PlayedPresence, PlayedRevocation

TOKEN = "the-shared-registration-token"

Join = Callable[..., Awaitable[NodeView]]


async def no_access(_host: str) -> SourceAccess | None:
    return None


def now() -> datetime:
    return datetime.now(UTC)


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
    """On a queue without a worker: what is started stays open."""
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
def presence() -> PlayedPresence:
    return PlayedPresence()


@pytest.fixture
def lifecycle(nodes: Nodes, life: NodeLife, runs: TemporalRuns, presence: PlayedPresence) -> Lifecycle:
    return Lifecycle(nodes, life, runs, presence, now, PlayedRevocation())


def invites_on(database: Database, clock: Clock = now) -> Invites:
    door = Door("https://10.0.0.5:8900")
    return Invites(InviteTable(database), Labels(database), AuditTrail(database), door, clock)


def registration_on(database: Database, presence: PlayedPresence, clock: Clock = now) -> Registration:
    return Registration(
        nodes=Nodes(database, clock=clock),
        claims=NodeLife(database),
        presence=presence,
        invites=invites_on(database, clock),
        trail=AuditTrail(database, clock=clock),
        issuer=CredentialIssuer(new_trust().account_seed),
        voices=Voices(database),
        registration_token=TOKEN,
        nats_url="nats://127.0.0.1:4222",
        credential_lifetime=timedelta(hours=24),
        auto_approve=False,
        clock=clock,
    )


@pytest.fixture
def invites(database: Database) -> Invites:
    return invites_on(database)


@pytest.fixture
def registration(database: Database, presence: PlayedPresence) -> Registration:
    return registration_on(database, presence)


@pytest.fixture
def join(registration: Registration, nodes: Nodes) -> Join:
    """Register a node of our own kind, approved unless told otherwise."""

    async def joined(*, approved: bool = True, node_type: str = "backend") -> NodeView:
        request = RegisterRequest(
            name=f"node-{uuid.uuid4()}", protocol=Protocol.NODESMITH, machine_id="m1", node_type=node_type
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
        gate=Gate(operations, runs),
        intents=Intents(catalogue, UriRules(frozenset({"file", "https", "oci"})), RegistryTags(no_access)),
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )

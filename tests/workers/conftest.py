"""A worker as `nodesmith.workers.main` builds it, with its own database and short intervals."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.client import Client

from nodesmith.bus.connection import connect_control
from nodesmith.contracts.temporal.operations import FLEET_MONITOR_ID
from nodesmith.control.graph import ControlGraph
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect
from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.workers.main import working
from tests.databases import migrated_template, opened
from tests.servers import NatsForTests, PostgresForTests


@pytest.fixture(scope="module")
async def database(postgres_server: PostgresForTests) -> AsyncIterator[Database]:
    url = await postgres_server.create_database(template=await migrated_template(postgres_server))
    async with opened(url) as database:
        yield database


@pytest.fixture(scope="session")
async def client(temporal_address: str) -> Client:
    return await connect(ControlSettings(temporal_address=temporal_address))


@pytest.fixture
def settings() -> ControlSettings:
    return ControlSettings(
        fleet_tick=timedelta(milliseconds=200),
        monitor_check=timedelta(milliseconds=100),
        monitor_silence=timedelta(seconds=1),
    )


@pytest.fixture
async def worker(
    settings: ControlSettings, client: Client, database: Database, nats_server: NatsForTests
) -> AsyncIterator[None]:
    async with running_worker(settings, client, database, nats_server):
        yield


@asynccontextmanager
async def running_worker(
    settings: ControlSettings, client: Client, database: Database, nats: NatsForTests
) -> AsyncIterator[None]:
    bus = await connect_control(nats.url, nats.issuer, name=f"worker-{uuid.uuid4()}", keys=Nodes(database))
    try:
        async with working(ControlGraph(settings, database, bus, client)):
            yield
        await client.get_workflow_handle(FLEET_MONITOR_ID).terminate("the test is over")
    finally:
        await bus.close()

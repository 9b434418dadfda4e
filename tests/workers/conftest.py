"""A worker as `workers.main` composes it, on a database of its own; the intervals are short."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.client import Client

from bus.connection import connect_control
from bus.credentials import CredentialIssuer
from contracts.temporal import FLEET_MONITOR_ID
from runtime.settings import ControlSettings
from runtime.temporal import connect
from store.database import Database
from tests.databases import migrated_template, opened
from tests.servers import NatsForTests, PostgresForTests
from workers.main import working


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
    bus = await connect_control(nats.url, CredentialIssuer(nats.trust.account_seed), name=f"worker-{uuid.uuid4()}")
    try:
        async with working(settings, client, database, bus):
            yield
        await client.get_workflow_handle(FLEET_MONITOR_ID).terminate("the test is over")
    finally:
        await bus.close()

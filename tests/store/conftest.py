"""Each store module has its own database, cloned from the migrated template."""

from collections.abc import AsyncIterator

import pytest

from nodesmith.store.database import Database
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.events import EventFeed
from nodesmith.store.operations.operations import OperationTable
from tests.databases import migrated_template, opened
from tests.servers import PostgresForTests
from tests.store.clock import SetClock


@pytest.fixture(scope="session")
async def template(postgres_server: PostgresForTests) -> str:
    return await migrated_template(postgres_server)


@pytest.fixture(scope="module")
async def database_url(postgres_server: PostgresForTests, template: str) -> str:
    return await postgres_server.create_database(template=template)


@pytest.fixture(scope="module")
async def database(database_url: str) -> AsyncIterator[Database]:
    async with opened(database_url) as database:
        yield database


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def nodes(database: Database, clock: SetClock) -> Nodes:
    return Nodes(database, clock=clock)


@pytest.fixture
def operations(database: Database, clock: SetClock) -> OperationTable:
    return OperationTable(database, clock=clock)


@pytest.fixture
def feed(database: Database) -> EventFeed:
    return EventFeed(database)

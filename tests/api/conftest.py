"""One API per module, with its own database, task queue and folder."""

import secrets
from collections.abc import AsyncIterator

import pytest

from nodesmith.runtime.settings import ControlSettings
from tests.api.station import Api, composed, ready, settings_for
from tests.databases import migrated_template
from tests.servers import NatsForTests, PostgresForTests


@pytest.fixture(scope="session")
async def template(postgres_server: PostgresForTests) -> str:
    return await migrated_template(postgres_server)


@pytest.fixture(scope="module")
async def database_url(postgres_server: PostgresForTests, template: str) -> str:
    return await postgres_server.create_database(template=template)


@pytest.fixture(scope="module")
def queue() -> str:
    """Nobody works on it: an operation stays where the test puts it."""
    return f"api-test-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, nats_server: NatsForTests, temporal_address: str
) -> ControlSettings:
    return settings_for(
        tmp_path_factory.mktemp("api"),
        database_url=database_url,
        nats_url=nats_server.url,
        account_seed=nats_server.trust.account_seed,
        temporal=temporal_address,
    )


@pytest.fixture(scope="module")
async def api(settings: ControlSettings, queue: str) -> AsyncIterator[Api]:
    async with composed(settings, queue=queue) as api:
        await ready(api)
        yield api


@pytest.fixture(scope="module")
async def replica(settings: ControlSettings, queue: str) -> AsyncIterator[Api]:
    """A second API beside the first."""
    async with composed(settings, queue=queue) as replica:
        await ready(replica)
        yield replica

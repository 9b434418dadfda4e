"""The pool of connections closes every connection that it opened, also those in use while it is closed."""

import pytest
from sqlalchemy import text

from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.store.database import Database


async def test_connection_in_use_while_the_pool_closes_is_closed_when_returned(database_url: str) -> None:
    """A task that ends after the pool, such as a rollback after a cancel, must not leave its connection open."""
    database = Database(database_url)
    async with database.session() as session:
        raw = await (await session.connection()).get_raw_connection()
        driver = raw.driver_connection
        assert driver is not None
        await database.close()
        await session.execute(text("SELECT 1"))
    assert driver.closed


async def test_closed_pool_opens_no_connection(database_url: str) -> None:
    database = Database(database_url)
    await database.ping()
    await database.close()
    with pytest.raises(ServiceUnavailable):
        await database.ping()

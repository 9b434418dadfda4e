"""Databases created by the migrations: one template per run, one copy of it per module (20 ms)."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nodesmith.store.database import Database
from tests.servers import PostgresForTests


async def migrated_template(postgres: PostgresForTests) -> str:
    """Migrate a new database, close all connections, which a template requires, and return its name."""
    name = f"template_{secrets.token_hex(4)}"
    database = Database(await postgres.create_database(name))
    await database.migrate()
    await database.close()
    return name


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        await database.close()

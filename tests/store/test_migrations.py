"""The migrations are literal; these tests keep them equal to the models and to the domain."""

import asyncio
import re
import sys
from asyncio.subprocess import PIPE

import psycopg
import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from nodesmith.domain.operation import TRANSITIONS, State
from nodesmith.store.database import HEAD, Database
from nodesmith.store.migrating import alembic_config
from nodesmith.store.tables import access, galleries, inventory, models
from nodesmith.store.tables.core import Base
from tests.databases import opened
from tests.servers import PostgresForTests

TABLES = (access, galleries, inventory, models)
"""imported, so that the metadata is complete when this module runs alone"""
CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
"""
INDEXES = """
    SELECT indrelid::regclass::text, indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
    JOIN pg_class ON pg_class.oid = indexrelid
    WHERE relnamespace = 'public'::regnamespace AND indrelid::regclass::text <> 'alembic_version'
"""
COLUMNS = """
    SELECT table_name, column_name, data_type, is_nullable, column_default, identity_generation
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""


async def schema_of(url: str) -> dict[str, set[tuple[object, ...]]]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return {
            query: {tuple(row) for row in await (await connection.execute(query)).fetchall()}
            for query in (CONSTRAINTS, INDEXES, COLUMNS)
        }


@pytest.fixture(scope="module")
async def created_by_models(postgres_server: PostgresForTests) -> str:
    url = await postgres_server.create_database()
    engine = create_async_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()
    return url


async def test_migrated_schema_is_the_schema_of_the_models(database_url: str, created_by_models: str) -> None:
    migrated, modelled = await schema_of(database_url), await schema_of(created_by_models)
    for query, rows in modelled.items():
        assert rows
        assert migrated[query] == rows


async def test_alembic_sees_nothing_left_to_migrate(database: Database) -> None:
    async with database.session() as session:
        connection = await session.connection()
        await connection.run_sync(lambda sync: command.check(alembic_config(sync)))


async def test_check_constraint_admits_exactly_the_states_of_the_transition_table(database: Database) -> None:
    async with database.session() as session:
        definition = await session.scalar(
            text("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'ck_operations_state'")
        )
    reached = {state for moves in TRANSITIONS.values() for state in moves.values()}
    assert {State(word) for word in re.findall(r"'(\w+)'", str(definition))} == set(TRANSITIONS) | reached


async def test_ten_at_once_migrate_an_empty_database(postgres_server: PostgresForTests) -> None:
    """R13: ten processes, under one advisory lock: one migrates, all go on. No queue is pruned (R13b superseded)."""
    url = await postgres_server.create_database()
    async with asyncio.TaskGroup() as starting:
        started = [starting.create_task(a_process(url)) for _ in range(10)]
    processes = [each.result() for each in started]
    answers = await asyncio.gather(*(each.communicate(b"go\n") for each in processes))
    assert [each.returncode for each in processes] == [0] * 10, answers
    assert [said for said, _ in answers] == [b"0\n"] * 10
    async with opened(url) as database, database.session() as session:
        assert await session.scalar(text("SELECT count(*) FROM alembic_version")) == 1
        ran = await session.scalars(text("SELECT xmin FROM pg_attribute WHERE attrelid = 'audit'::regclass"))
        assert len(set(ran.all())) == 1, "one transaction made the table"


async def a_process(url: str) -> asyncio.subprocess.Process:
    """Start a process that is ready to migrate and waits for a line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.store.migrating", url, stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


async def test_the_newest_migration_is_the_one_a_start_looks_for(database: Database) -> None:
    async with database.session() as session:
        assert await session.scalar(text("SELECT version_num FROM alembic_version")) == HEAD

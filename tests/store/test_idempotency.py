"""Idempotency keys: one key of one caller identifies one request, for a week."""

import asyncio
from datetime import timedelta

from sqlalchemy import text

from nodesmith.domain.idempotency import KeyClaim
from nodesmith.store.database import Database
from nodesmith.store.operations.history import History
from nodesmith.store.operations.idempotency import KEY_LIFETIME, IdempotencyKeys
from tests.store.clock import NOON


async def aged(database: Database, key: str, age: str) -> None:
    ageing = "UPDATE idempotency_keys SET created_at = now() - CAST(:age AS interval) WHERE key = :key"
    async with database.session() as session:
        await session.execute(text(ageing), {"age": age, "key": key})


def test_keys_live_for_seven_days() -> None:
    assert timedelta(days=7) == KEY_LIFETIME


async def test_first_of_many_writers_wins_and_all_read_its_id(database: Database) -> None:
    keys = IdempotencyKeys(database)
    claims = await asyncio.gather(
        *(keys.claim("ann", "k1", digest=f"d{number % 2}", op_id=f"op-{number}") for number in range(8))
    )
    assert [claim.is_new for claim in claims].count(True) == 1
    assert len({(claim.digest, claim.op_id) for claim in claims}) == 1


async def test_a_start_is_noted_once_and_only_for_its_own_id(database: Database) -> None:
    keys = IdempotencyKeys(database)
    await keys.claim("ann", "k3", digest="d", op_id="op-1")
    await keys.note("ann", "k3", op_id="op-0", job_id="wrong")
    assert await keys.find("ann", "k3") == KeyClaim("d", "op-1")
    await keys.note("ann", "k3", op_id="op-1", job_id="job-1")
    await keys.note("ann", "k3", op_id="op-1", job_id="job-2")
    assert await keys.claim("ann", "k3", digest="d", op_id="op-2") == KeyClaim("d", "op-1", "job-1")


async def test_keys_belong_to_their_caller(database: Database) -> None:
    keys = IdempotencyKeys(database)
    await keys.claim("ann", "k2", digest="d", op_id="op-1")
    assert await keys.find("bob", "k2") is None
    assert (await keys.claim("bob", "k2", digest="other", op_id="op-2")).is_new


async def test_an_expired_key_is_free_again(database: Database) -> None:
    keys = IdempotencyKeys(database)
    for key in ("old", "younger"):
        await keys.claim("ann", key, digest="d", op_id=f"op-{key}")
        await keys.note("ann", key, op_id=f"op-{key}", job_id=f"op-{key}")
    await aged(database, "old", "169 hours")
    await aged(database, "younger", "167 hours")
    assert await keys.find("ann", "old") is None
    assert await keys.claim("ann", "old", digest="new", op_id="op-3") == KeyClaim("new", "op-3", is_new=True)
    assert await keys.claim("ann", "younger", digest="d", op_id="op-4") == KeyClaim("d", "op-younger", "op-younger")


async def test_expired_keys_are_purged(database: Database) -> None:
    keys = IdempotencyKeys(database)
    for key in ("purged", "kept"):
        await keys.claim("ann", key, digest="d", op_id="op-1")
    await aged(database, "purged", "8 days")
    await History(database).purge(NOON - timedelta(days=90))
    async with database.session() as session:
        left = set(await session.scalars(text("SELECT key FROM idempotency_keys WHERE key IN ('purged', 'kept')")))
    assert left == {"kept"}

"""The same key of the same caller is the same operation."""

import asyncio

from sqlalchemy import text

from store.database import Database
from store.idempotency import IdempotencyKeys


async def test_first_of_many_writers_wins(database: Database) -> None:
    keys = IdempotencyKeys(database)
    await asyncio.gather(*(keys.remember("ann", "k1", "intent", f"op-{number}") for number in range(8)))
    first = await keys.find("ann", "k1")
    await keys.remember("ann", "k1", "other", "op-9")
    assert first is not None
    assert await keys.find("ann", "k1") == first


async def test_keys_belong_to_their_caller(database: Database) -> None:
    keys = IdempotencyKeys(database)
    await keys.remember("ann", "k2", "intent", "op-1")
    assert await keys.find("bob", "k2") is None


async def test_keys_are_forgotten_after_a_week(database: Database) -> None:
    keys = IdempotencyKeys(database)
    await keys.remember("ann", "old", "intent", "op-1")
    await keys.remember("ann", "younger", "intent", "op-2")
    async with database.session() as session:
        ageing = "UPDATE idempotency_keys SET created_at = now() - CAST(:age AS interval) WHERE key = :key"
        await session.execute(text(ageing), {"age": "8 days", "key": "old"})
        await session.execute(text(ageing), {"age": "6 days", "key": "younger"})
    await keys.remember("ann", "new", "intent", "op-3")
    assert await keys.find("ann", "old") is None
    assert await keys.find("ann", "younger") == ("intent", "op-2")

"""The audit trail keeps 400 days, and is found by index."""

from datetime import timedelta

from sqlalchemy import text

from domain.change import Change
from store.audit import AuditTrail
from store.database import Database
from tests.store.clock import SetClock


async def test_what_is_older_than_400_days_is_forgotten(database: Database, clock: SetClock) -> None:
    trail = AuditTrail(database, clock=clock)
    await trail.record(Change("alice", "nodes.approve", "old"))
    clock.now += timedelta(days=1)
    await trail.record(Change("alice", "nodes.approve", "younger", before={"a": "b\0"}, reason="why"))
    clock.now += timedelta(days=400, seconds=-1)
    assert await trail.purge(clock.now - timedelta(days=400)) == 1
    (left,) = await trail.entries(actor="alice")
    assert (left.target, left.before, left.reason) == ("younger", {"a": "b\ufffd"}, "why")


async def test_every_filter_has_an_index(database: Database) -> None:
    queries = ["actor = 'a'", "action = 'a'", "(target = 'a' OR target_id = 'a')", "at < now()"]
    async with database.session() as session:
        await session.execute(text("SET LOCAL enable_seqscan = off"))
        for condition in queries:
            plan = "\n".join(await session.scalars(text(f"EXPLAIN SELECT * FROM audit WHERE {condition}")))
            assert "Index" in plan, plan
            assert "Seq Scan" not in plan, plan

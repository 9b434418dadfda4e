"""The audit trail keeps 400 days, and is found by index."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import text

from domain.change import Change, Known
from store.audit import AuditTrail
from store.database import Database
from tests.store.clock import SetClock


async def test_what_is_older_than_400_days_is_forgotten(database: Database, clock: SetClock) -> None:
    trail = AuditTrail(database, clock=clock)
    await trail.begin(Change("alice", "nodes.approve", "old"))
    clock.now += timedelta(days=1)
    await trail.begin(Change("alice", "nodes.approve", "younger", before={"a": "b\0"}, reason="why"))
    clock.now += timedelta(days=400, seconds=-1)
    assert await trail.purge(clock.now - timedelta(days=400)) == 1
    (left,) = await trail.entries(actor="alice")
    assert (left.target, left.before, left.reason) == ("younger", {"a": "b\ufffd"}, "why")


async def test_a_change_is_there_before_it_is_made_and_says_how_it_went_after(database: Database) -> None:
    trail, asked = AuditTrail(database), Change("bob", "nodes.drain", "n1", after={"asked": 1}, reason="why")
    entry = await trail.begin(asked)
    (begun,) = await trail.entries(actor="bob")
    assert (begun.id, begun.outcome, begun.after) == (entry, Known.UNKNOWN, {"asked": 1})
    await trail.complete(entry, replace(asked, target="node-1", target_id="n1", after={"drained": True}))
    (made,) = await trail.entries(actor="bob")
    assert (made.outcome, made.after, made.target, made.reason) == (Known.DONE, {"drained": True}, "node-1", "why")
    assert (made.id, made.at) == (begun.id, begun.at)
    await trail.forget(entry)
    assert await trail.entries(actor="bob") == []


async def test_every_filter_has_an_index(database: Database) -> None:
    queries = ["actor = 'a'", "action = 'a'", "(target = 'a' OR target_id = 'a')", "at < now()"]
    async with database.session() as session:
        await session.execute(text("SET LOCAL enable_seqscan = off"))
        for condition in queries:
            plan = "\n".join(await session.scalars(text(f"EXPLAIN SELECT * FROM audit WHERE {condition}")))
            assert "Index" in plan, plan
            assert "Seq Scan" not in plan, plan

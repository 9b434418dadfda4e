"""The audit trail: retention of 400 days, outcomes, and indexes of its filters."""

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import text

from nodesmith.domain.audit_change import AuditChange, ChangeState
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.database import Database
from tests.store.clock import SetClock


async def test_audit_entries_older_than_400_days_are_purged(database: Database, clock: SetClock) -> None:
    trail = AuditTrail(database, clock=clock)
    await trail.begin(AuditChange("alice", "nodes.approve", "old"))
    clock.now += timedelta(days=1)
    await trail.begin(AuditChange("alice", "nodes.approve", "younger", before={"a": "b\0"}, reason="why"))
    clock.now += timedelta(days=400, seconds=-1)
    assert await trail.purge(clock.now - timedelta(days=400)) == 1
    [left], _ = await trail.page(actor="alice")
    assert (left.target, left.before, left.reason) == ("younger", {"a": "b\ufffd"}, "why")


async def test_audit_entry_exists_before_its_change_and_records_the_outcome(database: Database) -> None:
    trail, asked = AuditTrail(database), AuditChange("bob", "nodes.drain", "n1", after={"asked": 1}, reason="why")
    entry = await trail.begin(asked)
    [begun], _ = await trail.page(actor="bob")
    assert (begun.id, begun.outcome, begun.after) == (entry, ChangeState.UNKNOWN, {"asked": 1})
    await trail.complete(entry, replace(asked, target="node-1", target_id="n1", after={"drained": True}))
    [made], _ = await trail.page(actor="bob")
    assert (made.outcome, made.after, made.target, made.reason) == (
        ChangeState.DONE,
        {"drained": True},
        "node-1",
        "why",
    )
    assert (made.id, made.at) == (begun.id, begun.at)
    await trail.forget(entry)
    assert await trail.page(actor="bob") == ([], None)


async def test_every_filter_has_an_index(database: Database) -> None:
    queries = ["actor = 'a'", "action = 'a'", "(target = 'a' OR target_id = 'a')", "at < now()"]
    async with database.session() as session:
        await session.execute(text("SET LOCAL enable_seqscan = off"))
        for condition in queries:
            plan = "\n".join(await session.scalars(text(f"EXPLAIN SELECT * FROM audit WHERE {condition}")))
            assert "Index" in plan, plan
            assert "Seq Scan" not in plan, plan

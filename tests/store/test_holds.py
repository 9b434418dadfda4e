"""Counters of calls on PostgreSQL: exact and never negative, whatever is repeated, lost or killed."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select, update

from nodesmith.domain.node import Node
from nodesmith.domain.replica import Replica
from nodesmith.store.database import Database
from nodesmith.store.models.holds import GATEWAY, Holds
from nodesmith.store.nodes.lifecycle import NodeLife
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.tables.models import ReplicaHolderRow, ReplicaHoldRow, ReplicaRow
from tests.store.clock import NOON, SetClock
from tests.store.models import Stage, gpu_node


@pytest.fixture
async def stage(database: Database, clock: SetClock) -> Stage:
    stage = Stage(database, clock)
    await stage.empty()
    return stage


@pytest.fixture
def holds(database: Database, clock: SetClock) -> Holds:
    return Holds(database, clock=clock)


async def three_replicas(stage: Stage, nodes: Nodes) -> tuple[Node, list[Replica]]:
    model, node = await stage.deploy(), await gpu_node(nodes, slots=3)
    return node, [await stage.load(model, node) for _ in range(3)]


async def counted(database: Database) -> tuple[dict[str, int], dict[str, int]]:
    """The totals of the replicas, and the sums of their holds."""
    async with database.snapshot() as session:
        totals = await session.execute(select(ReplicaRow.id, ReplicaRow.in_flight))
        held = await session.execute(
            select(ReplicaHoldRow.replica_id, func.sum(ReplicaHoldRow.in_flight)).group_by(ReplicaHoldRow.replica_id)
        )
        return {row.id: row.in_flight for row in totals}, {replica: int(total) for replica, total in held}


async def be_silent(database: Database, holder: str) -> None:
    async with database.session() as session:
        past = func.now() - timedelta(hours=1)
        await session.execute(update(ReplicaHolderRow).where(ReplicaHolderRow.id == holder).values(seen_at=past))


async def test_64_concurrent_acquires_spread_evenly(stage: Stage, nodes: Nodes, holds: Holds) -> None:
    """R38, R39, H12: the choice among the replicas of a model is serialised, so idle replicas get one call each."""
    model, node = await stage.deploy(), await gpu_node(nodes, gib=100, slots=64)
    for _ in range(64):
        await stage.load(model, node)
    chosen = await asyncio.gather(*(holds.acquire("llama", f"router{number % 4}") for number in range(64)))
    assert Counter(each.id for each in chosen if each) == dict.fromkeys((each.id for each in chosen if each), 1)
    assert len({each.id for each in chosen if each}) == 64


async def test_acquire_takes_the_least_busy_then_least_recently_used_then_most_free(
    stage: Stage, nodes: Nodes, holds: Holds
) -> None:
    """R37, R38, R40, R46, R50."""
    model = await stage.deploy(memory=0)
    small, large = await gpu_node(nodes, gib=4), await gpu_node(nodes, gib=8)
    third = await gpu_node(nodes, gib=16)
    on_small, on_large = await stage.load(model, small), await stage.load(model, large)
    busy = await stage.load(model, third, in_flight=3)
    first, second, last = [await holds.acquire("llama", "r") for _ in range(3)]
    assert [each.id for each in (first, second, last) if each] == [on_large.id, on_small.id, on_large.id]
    preferred = await holds.acquire("llama", "r", prefer=busy.id)
    assert preferred is not None
    assert preferred.id == busy.id
    assert preferred.in_flight == 4


async def test_acquire_skips_what_cannot_serve(stage: Stage, nodes: Nodes, holds: Holds, database: Database) -> None:
    """R38, R49, R92: only loaded replicas on nodes that calls reach; a drained node serves until its replicas moved."""
    node, replicas = await three_replicas(stage, nodes)
    assert await holds.acquire("other", "r") is None
    async with database.session() as session:
        for replica, state in zip(replicas, ("draining", "loading", "loaded"), strict=True):
            await session.execute(update(ReplicaRow).where(ReplicaRow.id == replica.id).values(state=state))
    await NodeLife(database).drain(node.id, now=NOON)
    chosen = await holds.acquire("llama", "r")
    assert chosen is not None
    assert chosen.id == replicas[2].id
    await nodes.mark_unreachable(node.id, NOON)
    assert await holds.acquire("llama", "r") is None


async def test_double_release_changes_nothing(stage: Stage, nodes: Nodes, holds: Holds, database: Database) -> None:
    """R47, R89: a release counts only if this holder has a call there."""
    _, replicas = await three_replicas(stage, nodes)
    chosen = await holds.acquire("llama", "one")
    other = await holds.acquire("llama", "two", prefer=chosen.id if chosen else "")
    assert chosen is not None
    assert other is not None
    released = await asyncio.gather(*(holds.release("one", chosen.id) for _ in range(8)))
    assert sorted(released) == [False] * 7 + [True]
    assert not await holds.release("nobody", chosen.id)
    assert not await holds.release("one", "no-such-replica")
    totals, _ = await counted(database)
    assert totals == {each.id: int(each.id == chosen.id) for each in replicas}


async def test_killed_holder_gives_its_calls_back(stage: Stage, nodes: Nodes, holds: Holds, database: Database) -> None:
    """A gateway that was killed with calls open is deleted after its silence, and the totals are exact again."""
    _, replicas = await three_replicas(stage, nodes)
    ids = [each.id for each in replicas]
    await holds.sync("dead", {ids[0]: 5, ids[1]: 2})
    totals = await holds.sync("alive", {ids[0]: 3})
    assert totals == {ids[0]: 8}
    await be_silent(database, "dead")
    assert await holds.delete_silent() == ["dead"]
    assert (await counted(database))[0] == {ids[0]: 3, ids[1]: 0, ids[2]: 0}
    assert await holds.sync("dead", {ids[0]: 1}) == {ids[0]: 4}, "it was only slow, and counts again"


async def test_sync_ignores_replicas_that_are_gone(
    stage: Stage, nodes: Nodes, holds: Holds, database: Database
) -> None:
    node, replicas = await three_replicas(stage, nodes)
    await holds.sync("g", {replicas[0].id: 5})
    await NodeLife(database).remove(node.id, now=NOON)
    assert await holds.sync("g", {replicas[0].id: 4, "never": 1}) == {}
    assert await holds.leave("g")
    assert not await holds.renew("g")


async def test_8_gateways_at_once_stay_exact(stage: Stage, nodes: Nodes, holds: Holds, database: Database) -> None:
    """8 gateways synchronise 20 replicas while one of them is deleted and calls are acquired and released."""
    model, node = await stage.deploy(), await gpu_node(nodes, gib=100, slots=20)
    ids = [(await stage.load(model, node)).id for _ in range(20)]

    async def gateway(number: int) -> None:
        for turn in range(5):
            await holds.sync(f"g{number}", dict.fromkeys(ids, (number + turn) % 4), kind=GATEWAY)

    async def router() -> None:
        for _ in range(10):
            chosen = await holds.acquire("llama", "router")
            if chosen:
                await holds.release("router", chosen.id)

    async def reaper() -> None:
        for _ in range(5):
            await holds.leave("g0")

    await asyncio.gather(*(gateway(number) for number in range(8)), router(), reaper())
    await holds.leave("g0")
    totals, held = await counted(database)
    assert {each: total for each, total in totals.items() if total} == {each: n for each, n in held.items() if n}
    assert set(totals.values()) == {sum((number + 4) % 4 for number in range(1, 8))}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.sampled_from("ab"), st.just(0)),
        st.tuples(st.just("release"), st.sampled_from("ab"), st.integers(0, 2)),
        st.tuples(st.just("sync"), st.sampled_from("gh"), st.integers(0, 26)),
        st.tuples(st.just("die"), st.sampled_from("abgh"), st.just(0)),
        st.tuples(st.just("unload"), st.just(""), st.integers(0, 2)),
    ),
    max_size=25,
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_counters_equal_the_open_calls(
    stage: Stage, nodes: Nodes, holds: Holds, database: Database, steps: list[tuple[str, str, int]]
) -> None:
    """R89: after every sequence of calls, repeats, deaths and unloads, each counter is the number of open calls."""
    await stage.empty()
    _, replicas = await three_replicas(stage, nodes)
    alive = {each.id for each in replicas}
    expected: dict[str, Counter[str]] = {holder: Counter() for holder in "abgh"}
    for step, holder, number in steps:
        match step:
            case "acquire":
                chosen = await holds.acquire("llama", holder)
                assert (chosen is None) == (not alive)
                if chosen:
                    expected[holder][chosen.id] += 1
            case "release":
                replica = replicas[number].id
                did = await holds.release(holder, replica)
                assert did == (expected[holder][replica] > 0)
                expected[holder][replica] -= did
            case "sync":
                told = {each.id: (number // 3**place) % 3 for place, each in enumerate(replicas)}
                await holds.sync(holder, told)
                expected[holder] = Counter({each: calls for each, calls in told.items() if each in alive})
            case "die":
                await holds.leave(holder)
                expected[holder] = Counter()
            case "unload":
                await delete_replica(database, replicas[number].id)
                alive.discard(replicas[number].id)
                for held in expected.values():
                    held.pop(replicas[number].id, None)
    totals, _ = await counted(database)
    assert totals == {each: sum(held[each] for held in expected.values()) for each in alive}


async def delete_replica(database: Database, replica_id: str) -> None:
    async with database.session() as session:
        found = await session.get(ReplicaRow, replica_id)
        if found is not None:
            await session.delete(found)

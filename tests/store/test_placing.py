"""Placement and eviction on PostgreSQL: exact under concurrency, and equal to the pure function."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from nodesmith.domain.deployment import Rule
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.domain.placement import PlacementNode, WhyNot, refusal_of
from nodesmith.domain.replica import ReplicaState
from nodesmith.domain.selector import parse
from nodesmith.store.database import Database
from nodesmith.store.models.snapshots import FleetSnapshots
from nodesmith.store.nodes.lifecycle import NodeLife
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.tables.core import NodeRow
from nodesmith.store.tables.models import ReplicaRow
from tests.store.clock import NOON, SetClock
from tests.store.models import GIB, Stage, gpu_node


@pytest.fixture
async def stage(database: Database, clock: SetClock) -> Stage:
    stage = Stage(database, clock)
    await stage.empty()
    return stage


async def test_200_concurrent_placements_take_exactly_what_fits(stage: Stage, nodes: Nodes) -> None:
    """R20, H9: the lock is the first statement, so each placement sees the reservations of all earlier ones."""
    models = [await stage.deploy(f"m{number}") for number in range(10)]
    node = await gpu_node(nodes, gib=20, slots=100)
    placed = await asyncio.gather(*(stage.place(models[number % 10], node) for number in range(200)))
    rows = await stage.of_node(node.id)
    assert sum(each is not None for each in placed) == len(rows) == 20
    assert len({(row.model, row.index) for row in rows}) == 20
    assert sum(row.reserved for row in rows) == 20 * GIB


async def test_slots_limit_placements_of_one_model(stage: Stage, nodes: Nodes) -> None:
    """R3, R42, R43, R94: a row in any state occupies a slot, and the lowest free index is taken first."""
    model, node = await stage.deploy(memory=0), await gpu_node(nodes, slots=3)
    placed = await asyncio.gather(*(stage.place(model, node) for _ in range(10)))
    assert sorted(each.index for each in placed if each) == [0, 1, 2]
    second = next(each for each in placed if each and each.index == 1)
    assert await stage.replicas.failed(second.op_id, "no")
    again = await stage.place(model, node)
    assert again is not None
    assert again.index == 1


async def test_two_schedulers_do_not_place_more_than_planned(stage: Stage, nodes: Nodes) -> None:
    model = await stage.deploy()
    fleet = [await gpu_node(nodes) for _ in range(4)]
    placed = await asyncio.gather(*(stage.place(model, node, upto=2) for node in fleet for _ in range(2)))
    assert sum(each is not None for each in placed) == 2


async def test_old_revision_is_not_placed(stage: Stage, nodes: Nodes) -> None:
    old, node = await stage.deploy(), await gpu_node(nodes)
    assert (await stage.deploy(arguments=("--new",))).revision == 2
    assert await stage.place(old, node) is None


async def test_reserved_memory_counts_until_a_reading_shows_it(stage: Stage, nodes: Nodes, database: Database) -> None:
    """R19, H18, H38: reservations count against the budget always, against a reading until it includes them."""
    node = await gpu_node(nodes, gib=8, slots=20, vram_budget="6GiB")
    model = await stage.deploy(memory=2 * GIB)
    loaded = await stage.load(model, node)

    async def reading(available: int, after: timedelta) -> None:
        async with database.session() as session:
            changed = update(NodeRow).where(NodeRow.id == node.id)
            resources = {"total_vram": 8 * GIB, "available_vram": available}
            assert loaded.loaded_at is not None
            await session.execute(changed.values(resources=resources, resources_at=loaded.loaded_at + after))

    await reading(3 * GIB, -timedelta(seconds=1))
    assert await stage.place(model, node) is None, "3 GiB were free before 2 GiB were loaded"
    await reading(3 * GIB, timedelta(minutes=1))
    assert await stage.place(model, node) is None, "the budget of 6 GiB has 5 GiB in use"
    await reading(6 * GIB, timedelta(minutes=1))
    assert await stage.place(model, node) is not None
    assert await stage.place(model, node) is not None
    assert await stage.place(model, node) is None, "three times 2 GiB are the budget"


async def test_8_concurrent_evictions_stop_exactly_at_the_minimum(stage: Stage, nodes: Nodes) -> None:
    """H16, R51, R52: only idle replicas of models above their minimum go, the least recently used first."""
    model = await stage.deploy("spare", rule=Rule(min_replicas=2, max_replicas=0))
    fleet = [await gpu_node(nodes) for _ in range(5)]
    used = [
        await stage.load(model, node, last_used=NOON - timedelta(minutes=9 - number))
        for number, node in enumerate(fleet)
    ]
    evicted = await asyncio.gather(
        *(stage.placing.evict([node.id for node in fleet], for_model="other") for _ in range(8))
    )
    assert {each.id for each in evicted if each} == {each.id for each in used[:3]}
    states = [each.state for each in await stage.of_model("spare")]
    assert states.count(ReplicaState.LOADED) == 2


async def test_eviction_counts_only_healthy_nodes(stage: Stage, nodes: Nodes, clock: SetClock) -> None:
    """H11: a replica on an unreachable node does not satisfy the minimum of its model."""
    model = await stage.deploy("spare", rule=Rule(min_replicas=1, max_replicas=0))
    away, here = await gpu_node(nodes), await gpu_node(nodes)
    await stage.load(model, away)
    await stage.load(model, here)
    await nodes.mark_unreachable(away.id, NOON)
    assert await stage.placing.evict([here.id], for_model="other") is None


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"in_flight": 1}, Rule(max_replicas=0)),
        ({}, Rule(max_replicas=0, spread_all=True)),
        ({"state": "draining"}, Rule(max_replicas=0)),
    ],
)
async def test_eviction_spares(stage: Stage, nodes: Nodes, facts: dict[str, Any], rule: Rule) -> None:
    """H16: busy replicas and models with one replica on each node are protected."""
    node = await gpu_node(nodes)
    await stage.load(await stage.deploy("spare", rule=rule), node, **facts)
    assert await stage.placing.evict([node.id], for_model="other") is None


async def test_eviction_leaves_other_nodes_and_the_model_itself_alone(stage: Stage, nodes: Nodes) -> None:
    """H16: the freed node is one that may run the model."""
    here, elsewhere = await gpu_node(nodes), await gpu_node(nodes)
    model = await stage.deploy("spare")
    await stage.load(model, elsewhere)
    await stage.load(model, here)
    assert await stage.placing.evict([here.id], for_model="spare") is None
    evicted = await stage.placing.evict([here.id], for_model="other")
    assert evicted is not None
    assert evicted.node_id == here.id


MOMENTS = st.none() | st.integers(-100, 100).map(lambda seconds: NOON + timedelta(seconds=seconds))
SIZES = st.none() | st.integers(0, 8).map(lambda gib: gib * GIB)
FACTS = st.fixed_dictionaries(
    {
        "node_type": st.sampled_from(["backend", "backend", "backend", "agent"]),
        "protocol": st.sampled_from([2, 2, 2, 1]),
        "approved_at": st.just(NOON) | MOMENTS,
        "drained_at": st.none() | MOMENTS,
        "left_at": st.none() | st.none() | MOMENTS,
        "last_heartbeat": st.just(NOON) | MOMENTS,
        "unreachable_since": st.none() | MOMENTS,
        "max_replicas_override": st.none() | st.integers(1, 4),
        "vram_budget_override": st.none() | st.sampled_from(["", "50%", "3GiB"]),
        "resources_at": MOMENTS,
    }
)
RESOURCES = st.fixed_dictionaries(
    {"total_vram": SIZES, "available_vram": SIZES, "total_ram": SIZES, "available_ram": SIZES}
).map(lambda all_: {key: value for key, value in all_.items() if value is not None})
LOADED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), MOMENTS), max_size=4, unique_by=lambda each: each[0])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(facts=FACTS, resources=RESOURCES, loaded=LOADED, need=st.integers(0, 4), labelled=st.booleans())
async def test_sql_and_pure_function_agree(
    stage: Stage,
    nodes: Nodes,
    database: Database,
    clock: SetClock,
    facts: dict[str, Any],
    resources: dict[str, Any],
    loaded: list[tuple[int, int, Any]],
    need: int,
    labelled: bool,
) -> None:
    """H19, R19: the placement in SQL accepts a node with an index if and only if the pure function does."""
    await stage.empty()
    node = await gpu_node(nodes, gib=100, slots=4, labels={"zone": "a"} if labelled else {})
    model = await stage.deploy(memory=need * GIB, rule=Rule(selector="zone=a", max_replicas=0))
    rows = [a_row(node, index, size * GIB, loaded_at) for index, size, loaded_at in loaded]
    async with database.session() as session:
        session.add_all(rows)
    async with database.session() as session:
        await session.execute(update(NodeRow).where(NodeRow.id == node.id).values(**facts, resources=resources))
    seen = await snapshot_node(database, node.id, clock)
    refusal = refusal_of(model.spec, parse(model.selector), seen, now=NOON)
    expected = None if refusal else seen.free_index(model.name)
    assert refusal is None or refusal.why is not WhyNot.DISK
    placed = await stage.place(model, node)
    assert (placed.index if placed else None) == expected
    assert await agrees_about_serving(nodes, node, seen)
    await NodeLife(database).remove(node.id, now=NOON)


def a_row(node: Node, index: int, reserved: int, loaded_at: Any) -> ReplicaRow:
    facts = {"revision": 1, "state": "loaded", "op_id": f"{node.id}{index}", "model_name": "llama"}
    return ReplicaRow(
        id=f"{node.id}#{index}", node_id=node.id, replica_index=index, reserved=reserved, loaded_at=loaded_at, **facts
    )


async def snapshot_node(database: Database, node_id: str, clock: SetClock) -> PlacementNode:
    fleet = await FleetSnapshots(database, clock=clock).read()
    return next(node for node in fleet.nodes if node.id == node_id)


async def agrees_about_serving(nodes: Nodes, node: Node, seen: PlacementNode) -> bool:
    """A healthy node serves; any other serves only if it is drained."""
    found = await nodes.find(node.id)
    assert found is not None
    if found.status is NodeStatus.HEALTHY:
        return seen.is_serving
    return not seen.is_serving or found.status is NodeStatus.DRAINING

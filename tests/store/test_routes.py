"""What gateways read and write on PostgreSQL."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from nodesmith.domain.deployment import RoutePolicy, Rule
from nodesmith.domain.forwarding import forwarded, server_name
from nodesmith.domain.routing import DEFAULT_BOUNDS, LoadBounds, pick
from nodesmith.gateway.route_feed import RouteFeed
from nodesmith.gateway.routes import RouteTable
from nodesmith.store.database import Database
from nodesmith.store.models.holds import Holds
from nodesmith.store.models.routes import Routes
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.tables.core import NodeRow
from nodesmith.store.tables.models import ReplicaRow
from tests.deadlines import HANGS_S
from tests.store.clock import NOON, SetClock
from tests.store.models import GIB, Stage, gpu_node


@pytest.fixture
async def stage(database: Database, clock: SetClock) -> Stage:
    stage = Stage(database, clock)
    await stage.empty()
    return stage


@pytest.fixture
def routes(database: Database, clock: SetClock) -> Routes:
    return Routes(database, clock=clock)


async def change(database: Database, replica_id: str, **columns: Any) -> None:
    async with database.session() as session:
        await session.execute(update(ReplicaRow).where(ReplicaRow.id == replica_id).values(**columns))


async def test_routes_are_the_loaded_replicas_of_nodes_that_serve(
    stage: Stage, nodes: Nodes, routes: Routes, database: Database, clock: SetClock
) -> None:
    """R92: a node that is silent gets no calls; one that is drained still does, until its replicas have moved."""
    model, node, other = await stage.deploy(), await gpu_node(nodes, slots=3), await gpu_node(nodes)
    plain, behind, ending = [await stage.load(model, node) for _ in range(3)]
    silent = await stage.load(model, other)
    await change(database, behind.id, address=forwarded("10.0.0.1:8905"), in_flight=4, last_used=NOON)
    await change(database, ending.id, state="draining")
    async with database.session() as session:
        await session.execute(update(NodeRow).where(NodeRow.id == other.id).values(unreachable_since=NOON))
        await session.execute(update(NodeRow).where(NodeRow.id == node.id).values(drained_at=NOON))
    found = {route.id: route for route in (await routes.read()).replicas}
    assert set(found) == {plain.id, behind.id}
    assert silent.id not in found
    assert (found[plain.id].address, found[plain.id].server_name) == (f"{node.name}:0", "")
    assert (found[behind.id].address, found[behind.id].in_flight) == ("10.0.0.1:8905", 4)
    assert found[behind.id].server_name == server_name(node.id, "llama#1")
    assert found[behind.id].last_used == NOON.timestamp()
    assert found[plain.id].available == 8 * GIB


@pytest.mark.parametrize(
    ("rule", "bounds"),
    [
        (Rule(), DEFAULT_BOUNDS),
        (Rule(policy=RoutePolicy.ROUND_ROBIN), None),
        (Rule(policy=RoutePolicy.PREFIX_CACHE, balance_abs_threshold=5), LoadBounds(5, 1.5)),
        (Rule(balance_rel_threshold=3.0), LoadBounds(2, 3.0)),
    ],
)
async def test_rule_of_a_model_sets_its_bounds(
    stage: Stage, routes: Routes, rule: Rule, bounds: LoadBounds | None
) -> None:
    await stage.deploy(rule=rule)
    assert (await routes.read()).models[0].bounds == bounds


async def test_clients_are_told_what_happens_to_a_model_without_replicas(
    stage: Stage, nodes: Nodes, routes: Routes
) -> None:
    model = await stage.deploy()
    assert (await routes.read()).models[0].loading == {"state": "waiting"}
    node = await gpu_node(nodes)
    await stage.place(model, node)
    assert (await routes.read()).models[0].loading == {"state": "placing", "node": node.name}


async def test_gateway_is_woken_by_every_change_of_a_replica(
    stage: Stage, nodes: Nodes, database: Database, clock: SetClock
) -> None:
    model, node = await stage.deploy(), await gpu_node(nodes)
    replica = await stage.load(model, node)
    patient = Routes(database, clock=clock, poll_s=HANGS_S)
    async with aclosing(patient.wakeups()) as wakeups, asyncio.timeout(HANGS_S):
        await anext(wakeups)
        for columns in ({"address": "elsewhere:1"}, {"state": "draining"}):
            await change(database, replica.id, **columns)
            await anext(wakeups)


async def test_counts_of_a_gateway_are_written_and_given_back(
    stage: Stage, nodes: Nodes, routes: Routes, database: Database
) -> None:
    """Two gateways see each other's calls; the counts of one that leaves are gone."""
    model, node = await stage.deploy(), await gpu_node(nodes, slots=2)
    first, second = [await stage.load(model, node) for _ in range(2)]
    tables = [RouteTable(), RouteTable()]
    one, other = (RouteFeed(routes, table) for table in tables)
    for table in tables:
        table.load(await routes.read())
    for _ in range(3):
        await tables[0].acquire("llama", prefix=None, tried={second.id}, deadline=tables[0].deadline())
    await one.synchronise()
    held = await tables[1].acquire("llama", prefix=None, tried={second.id}, deadline=tables[1].deadline())
    await other.synchronise()
    assert (held.id, held.others, held.own) == (first.id, 3, 1)
    tables[0].load(await routes.read())
    seen = tables[0].models["llama"].replicas[first.id]
    assert (seen.own, seen.others, seen.in_flight) == (3, 1, 4)
    await one.leave()
    assert {route.id: route.in_flight for route in (await routes.read()).replicas} == {first.id: 1, second.id: 0}
    await one.synchronise()
    assert {route.in_flight for route in (await routes.read()).replicas} == {1, 0}


async def test_counts_come_back_after_the_store_forgot_a_gateway(
    stage: Stage, nodes: Nodes, routes: Routes, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All counts are written every 3 s, also those that did not change."""
    model, node = await stage.deploy(), await gpu_node(nodes)
    await stage.load(model, node)
    table = RouteTable()
    feed = RouteFeed(routes, table)
    table.load(await routes.read())
    await table.acquire("llama", prefix=None, tried=(), deadline=table.deadline())
    await feed.synchronise()
    await routes.leave(feed.holder_id)
    assert (await routes.read()).replicas[0].in_flight == 0
    feed._written_at -= 3.1
    await feed.synchronise()
    assert (await routes.read()).replicas[0].in_flight == 1


async def test_call_on_a_drained_replica_counts_until_it_ends(
    stage: Stage, nodes: Nodes, routes: Routes, database: Database
) -> None:
    model, node = await stage.deploy(), await gpu_node(nodes)
    loaded = await stage.load(model, node)
    table = RouteTable()
    feed = RouteFeed(routes, table)
    table.load(await routes.read())
    replica = await table.acquire("llama", prefix=None, tried=(), deadline=table.deadline())
    await change(database, loaded.id, state="draining")
    table.load(await routes.read())
    assert not table.models["llama"].replicas
    await feed.synchronise()
    assert (await stage.of_node(node.id))[0].in_flight == 1
    table.release("llama", replica)
    await feed.synchronise()
    assert (await stage.of_node(node.id))[0].in_flight == 0


async def test_wanted_model_is_noted_for_the_scheduler(stage: Stage, routes: Routes) -> None:
    await stage.deploy()
    await routes.want({"llama", "nobody"})
    found = await stage.deployments.find("llama")
    assert found is not None
    assert found.wanted_at is not None


facts = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([None, 0, 1, 2]), st.integers(0, 2)), min_size=1, max_size=5
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(facts)
async def test_gateway_and_database_choose_the_same_replica(
    stage: Stage,
    nodes: Nodes,
    routes: Routes,
    database: Database,
    clock: SetClock,
    found: list[tuple[int, int | None, int]],
) -> None:
    """The pure function is the mirror of the statement ACQUIRE."""
    await stage.empty()
    model = await stage.deploy(memory=0)
    for in_flight, used, free in found:
        node = await gpu_node(nodes, gib=8, available_vram=free * GIB)
        last_used = None if used is None else NOON + timedelta(seconds=used)
        await stage.load(model, node, in_flight=in_flight, last_used=last_used)
    table = RouteTable()
    table.load(await routes.read())
    ours = pick(list(table.models["llama"].replicas.values()))
    theirs = await Holds(database, clock=clock).acquire("llama", "router")
    assert ours is not None
    assert theirs is not None
    assert ours.id == theirs.id

"""Replicas on PostgreSQL: guarded changes, reports of nodes, rests, notifications, and the counts of nodes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import select, update

from nodesmith.contracts.nats.presence import Heartbeat, Resources
from nodesmith.domain.deployment import Rule
from nodesmith.domain.model_errors import RevisionConflict
from nodesmith.domain.replica import ReplicaState, ReportedReplica
from nodesmith.domain.tick import NOTHING, PlannedDrain, Unsatisfied
from nodesmith.store.database import Database
from nodesmith.store.models.snapshots import FleetSnapshots
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.nodes.overrides import Overrides
from nodesmith.store.tables.core import NodeRow
from nodesmith.store.tables.models import LoadFailureRow, ReplicaRow
from tests.store.clock import NOON, SetClock
from tests.store.fleet import registered
from tests.store.models import GIB, Stage, a_spec, gpu_node


@pytest.fixture
async def stage(database: Database, clock: SetClock) -> Stage:
    stage = Stage(database, clock)
    await stage.empty()
    return stage


async def state_of(stage: Stage, replica_id: str) -> ReplicaState | None:
    async with stage.database.session() as session:
        word = await session.scalar(select(ReplicaRow.state).where(ReplicaRow.id == replica_id))
    return ReplicaState(word) if word else None


# what became of a load ----------------------------------------------------------------------------------------


async def test_loaded_once(stage: Stage, nodes: Nodes) -> None:
    """R31, R41: one row per replica, whose id stays; address and state are written once."""
    placed = await stage.place(await stage.deploy(), await gpu_node(nodes))
    assert placed is not None
    assert await stage.replicas.loading(placed)
    assert not await stage.replicas.loading(placed)
    assert await stage.replicas.loaded(placed.op_id, "here:1", 7)
    assert await stage.replicas.loaded(placed.op_id, "elsewhere:1", 8), "a repeated report is fine"
    [loaded] = await stage.of_model("llama")
    assert (loaded.state, loaded.address, loaded.node_seq) == (ReplicaState.LOADED, "here:1", 7)
    assert not await stage.replicas.loaded("unknown", "here:1", 9), "no longer wanted"
    assert not await stage.replicas.failed(placed.op_id, "too late")
    assert not await stage.replicas.gone(placed.op_id)


async def test_failed_load_frees_its_slot_and_its_node_rests(stage: Stage, nodes: Nodes, clock: SetClock) -> None:
    """H17, R21: the reservation goes with the row. The pair of model and node rests, longer each time."""
    model, node = await stage.deploy(), await gpu_node(nodes)
    for failures, rest in ((1, 30), (2, 60)):
        placed = await stage.place(model, node)
        assert placed is not None
        assert await stage.replicas.failed(placed.op_id, "it crashed")
        assert await stage.of_model("llama") == []
        async with stage.database.session() as session:
            failure = await session.get(LoadFailureRow, ("llama", node.id))
        assert failure is not None
        assert (failure.failures, failure.rest_until, failure.why) == (
            failures,
            NOON + timedelta(seconds=rest),
            "it crashed",
        )
    fleet = await FleetSnapshots(stage.database, clock=clock).read()
    assert fleet.rests == {"llama": {node.id: NOON + timedelta(seconds=60)}}
    await stage.load(model, node)
    assert (await FleetSnapshots(stage.database, clock=clock).read()).rests == {}, "a success forgives"


async def test_new_revision_forgives_failures(stage: Stage, nodes: Nodes, clock: SetClock) -> None:
    placed = await stage.place(await stage.deploy(), await gpu_node(nodes))
    assert placed is not None
    await stage.replicas.failed(placed.op_id, "bad argument")
    await stage.deploy(arguments=("--good",))
    assert (await FleetSnapshots(stage.database, clock=clock).read()).rests == {}


async def test_failed_unload_is_repeated(stage: Stage, nodes: Nodes) -> None:
    loaded = await stage.load(await stage.deploy(), await gpu_node(nodes))
    assert await stage.replicas.drain(PlannedDrain(loaded, "test"))
    unloading = await stage.replicas.unloading(loaded)
    assert unloading is not None
    assert unloading.op_id != loaded.op_id
    assert await stage.replicas.failed(unloading.op_id, "no answer")
    assert await state_of(stage, loaded.id) is ReplicaState.DRAINING
    again = await stage.replicas.unloading(loaded)
    assert again is not None
    assert await stage.replicas.gone(again.op_id)
    assert await state_of(stage, loaded.id) is None


async def test_replica_with_calls_is_not_unloaded(stage: Stage, nodes: Nodes) -> None:
    loaded = await stage.load(await stage.deploy(), await gpu_node(nodes), in_flight=1)
    assert await stage.replicas.unloading(loaded) is None, "it is not drained"
    assert await stage.replicas.drain(PlannedDrain(loaded, "test"))
    assert await stage.replicas.unloading(loaded) is None


async def test_two_schedulers_do_not_drain_more_than_planned(stage: Stage, nodes: Nodes) -> None:
    model = await stage.deploy()
    loaded = [await stage.load(model, await gpu_node(nodes)) for _ in range(4)]
    drained = await asyncio.gather(*(stage.replicas.drain(PlannedDrain(each, "test", keep=2)) for each in loaded))
    assert sorted(drained) == [False, False, True, True]
    rest = [each for each, done in zip(loaded, drained, strict=True) if not done]
    assert await stage.replicas.drain(PlannedDrain(rest[0], "test", keep=NOTHING))


async def test_rows_without_a_process_are_forgotten(stage: Stage, nodes: Nodes) -> None:
    model, node = await stage.deploy(), await gpu_node(nodes, slots=2)
    placed, loaded = await stage.place(model, node), await stage.load(model, node)
    assert placed is not None
    assert await stage.replicas.forget(placed)
    assert not await stage.replicas.forget(loaded)
    await NodeLifecycle(stage.database).left(node.id, now=NOON)
    assert await stage.replicas.forget(loaded)


async def test_what_is_to_start(stage: Stage, nodes: Nodes) -> None:
    model, node = await stage.deploy(arguments=("-x",)), await gpu_node(nodes, slots=3)
    placed, loaded = await stage.place(model, node), await stage.load(model, node)
    await stage.replicas.drain(PlannedDrain(loaded, "test"))
    unloading = await stage.replicas.unloading(loaded)
    assert placed is not None
    assert unloading is not None
    assert [(each.id, spec) for each, spec in await stage.replicas.to_start()] == [
        (placed.id, model.spec),
        (unloading.id, None),
    ]


# reports of nodes ---------------------------------------------------------------------------------------------


async def test_loaded_replica_that_a_newer_report_lacks_is_gone(stage: Stage, nodes: Nodes) -> None:
    """R35: exactly that one; the others of the node stay."""
    model, node = await stage.deploy(), await gpu_node(nodes, slots=2, boot_id="b1")
    loaded, loading = await stage.load(model, node), await stage.place(model, node)
    await stage.replicas.reported(node.id, "another", 99, [])
    await stage.replicas.reported(node.id, "b1", 1, [])
    assert await state_of(stage, loaded.id) is ReplicaState.LOADED, "a report from before the load proves nothing"
    await stage.replicas.reported(node.id, "b1", 2, [])
    assert await state_of(stage, loaded.id) is None
    assert loading is not None
    assert await state_of(stage, loading.id) is ReplicaState.PLACING, "it is not there yet"


async def test_replicas_of_an_earlier_boot_are_gone_after_a_reboot(stage: Stage, nodes: Nodes) -> None:
    """H7: a renewed registration deletes nothing; a new process reports what it has."""
    model, node = await stage.deploy(), await gpu_node(nodes, boot_id="b1")
    loaded = await stage.load(model, node)
    async with stage.database.session() as session:
        await session.execute(update(NodeRow).where(NodeRow.id == node.id).values(boot_id="b2"))
    assert await state_of(stage, loaded.id) is ReplicaState.LOADED
    await stage.replicas.reported(node.id, "b2", 1, [])
    assert await state_of(stage, loaded.id) is None


async def test_newer_report_moves_a_loaded_replica_to_its_new_address(stage: Stage, nodes: Nodes) -> None:
    """A process that was started again, after a crash or an upgrade of its backend, listens on another port."""
    model, node = await stage.deploy(), await gpu_node(nodes, boot_id="b1")
    loaded = await stage.load(model, node)
    moved = ReportedReplica(model=model.name, index=loaded.index, address="10.0.0.9:2", op_id=loaded.op_id)
    await stage.replicas.reported(node.id, "b1", 1, [moved])
    assert (await stage.of_node(node.id))[0].address == loaded.address, "an older report changes nothing"
    await stage.replicas.reported(node.id, "b1", 2, [moved])
    found = (await stage.of_node(node.id))[0]
    assert (found.id, found.address, found.node_seq, found.state) == (loaded.id, "10.0.0.9:2", 2, loaded.state)


async def test_report_heals_a_lost_outcome(stage: Stage, nodes: Nodes) -> None:
    model, node = await stage.deploy(), await gpu_node(nodes, boot_id="b1")
    placed = await stage.place(model, node)
    assert placed is not None
    report = ReportedReplica(model="llama", index=0, revision=1, address="here:1", op_id="other")
    await stage.replicas.reported(node.id, "b1", 3, [report])
    assert await state_of(stage, placed.id) is ReplicaState.PLACING, "another load started that process"
    await stage.replicas.reported(node.id, "b1", 3, [replace(report, op_id=placed.op_id)])
    assert await state_of(stage, placed.id) is ReplicaState.LOADED


async def test_replica_without_a_row_is_adopted(stage: Stage, nodes: Nodes) -> None:
    """R4, R48: a current one serves again, also after all rows vanished; any other is unloaded."""
    await stage.deploy()
    node = await gpu_node(nodes, boot_id="b1")
    current = ReportedReplica(model="llama", index=0, revision=1, address="here:1", op_id="o1")
    unknown = ReportedReplica(model="gone", index=2, revision=9, address="here:2", op_id="o2")
    for _ in range(2):
        await stage.replicas.reported(node.id, "b1", 5, [current, unknown])
    found = {each.model: each for each in await stage.of_node(node.id)}
    assert {name: each.state for name, each in found.items()} == {
        "llama": ReplicaState.LOADED,
        "gone": ReplicaState.DRAINING,
    }
    assert found["llama"].reserved == GIB


# deployments --------------------------------------------------------------------------------------------------


async def test_changed_specification_is_a_new_revision(stage: Stage) -> None:
    """R32, R33, R34: what to load is kept for the model, not for a replica; the last write counts."""
    first = await stage.deploy(arguments=("-a",))
    same = await stage.deploy(arguments=("-a",), rule=Rule(min_replicas=1, max_replicas=2))
    changed = await stage.deploy(arguments=("-b",))
    assert [each.revision for each in (first, same, changed)] == [1, 1, 2]
    assert (same.min_replicas, same.max_replicas) == (1, 2)
    assert changed.spec.arguments == ("-b",)


async def test_expected_revision_refuses_the_second_of_two(stage: Stage) -> None:
    async def deploy(argument: str) -> object:
        spec = a_spec(arguments=(argument,))
        return await stage.deployments.deploy(spec, Rule(), expected=0)

    results = await asyncio.gather(deploy("-a"), deploy("-b"), return_exceptions=True)
    assert [type(each) for each in results].count(RevisionConflict) == 1
    found = await stage.deployments.find("llama")
    assert found is not None
    assert found.revision == 1


async def test_rule_outlives_and_precedes_its_model(stage: Stage) -> None:
    """R6, R62, R63, R64, R66: a rule may exist without a model, and a model without a rule is loaded on demand."""
    stored = await stage.deployments.set_rule("later", Rule(min_replicas=2, max_replicas=3, selector="zone=a"))
    assert await stage.deployments.find("later") is None
    assert await stage.deployments.rules() == [stored]
    model = await stage.deploy("other")
    assert await stage.deployments.remove_rule("other")
    assert not await stage.deployments.remove_rule("other")
    found = await stage.deployments.find("other")
    assert found is not None
    assert (found.spec, found.min_replicas, found.max_replicas) == (model.spec, 0, 1)
    assert await stage.deployments.remove("other")
    assert not await stage.deployments.remove("other")


async def test_changed_rule_ends_the_rest(stage: Stage) -> None:
    """H36, R71, R72."""
    await stage.deploy()
    told = Unsatisfied("llama", 3, NOON, "nothing fits")
    for change in (
        lambda: stage.deployments.set_rule("llama", Rule()),
        lambda: stage.deployments.note_satisfied(["llama"]),
        stage.deploy,
    ):
        await stage.deployments.note_unsatisfied([told])
        resting = await stage.deployments.find("llama")
        assert resting is not None
        assert (resting.unsatisfiable_ticks, resting.unsatisfiable_until) == (3, NOON)
        await change()
        found = await stage.deployments.find("llama")
        assert found is not None
        assert (found.unsatisfiable_ticks, found.unsatisfiable_until, found.unsatisfiable_why) == (0, None, "")


async def test_demand_is_noted_once_a_second(stage: Stage) -> None:
    await stage.deploy()
    assert await stage.deployments.want("llama")
    first = await stage.deployments.find("llama")
    assert await stage.deployments.want("llama")
    assert not await stage.deployments.want("nobody")
    second = await stage.deployments.find("llama")
    assert first is not None
    assert second is not None
    assert first.wanted_at == second.wanted_at is not None


# notifications ------------------------------------------------------------------------------------------------


async def notified(database: Database, change: Callable[[], Awaitable[object]]) -> set[tuple[str, str]]:
    """The notifications that a change causes."""
    async with await psycopg.AsyncConnection.connect(database.conninfo, autocommit=True) as connection:
        await connection.execute("LISTEN routes")
        await connection.execute("LISTEN placement")
        await change()
        return {(each.channel, each.payload) async for each in connection.notifies(timeout=0.3)}


async def test_everything_that_could_make_room_is_notified(stage: Stage, nodes: Nodes, database: Database) -> None:
    """R86, R87, H36, R14g: registration, approval, labels, overrides and their removal, resume, recovery, removal."""
    node = await registered(nodes, approve=False)
    life, labels, overrides = NodeLifecycle(database), Labels(database), Overrides(database)
    beat = Heartbeat(node_id=node.id, resources=Resources(total_vram=8 * GIB))
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: nodes.approve(node.id, now=NOON),
        lambda: nodes.heartbeats([beat], NOON),
        lambda: nodes.heartbeats([beat], NOON + timedelta(seconds=61)),
        lambda: labels.merge(node.id, {"zone": "a"}),
        lambda: labels.remove(node.id, "zone"),
        lambda: overrides.max_replicas(node.id, 3),
        lambda: overrides.max_replicas(node.id, None),
        lambda: overrides.vram_budget(node.id, "50%"),
        lambda: overrides.vram_budget(node.id, None),
        lambda: life.drain(node.id, now=NOON),
        lambda: life.resume(node.id, now=NOON),
        lambda: nodes.mark_unreachable(node.id, NOON),
        lambda: nodes.mark_reachable({node.id: NOON + timedelta(seconds=1)}),
        lambda: life.left(node.id, now=NOON),
        lambda: registered(nodes, name=node.name),
        lambda: stage.deployments.set_rule("llama", Rule()),
        lambda: stage.deployments.remove_rule("llama"),
        stage.deploy,
        lambda: stage.deploy(arguments=("-x",)),
        lambda: stage.deployments.remove("llama"),
        lambda: life.remove(node.id, now=NOON),
    ]
    silent = [
        number
        for number, change in enumerate(changes)
        if ("placement", "capacity") not in await notified(database, change)
    ]
    assert silent == []


async def test_ordinary_heartbeat_notifies_nobody(nodes: Nodes, database: Database) -> None:
    node = await gpu_node(nodes)
    beat = Heartbeat(node_id=node.id, resources=Resources(available_vram=GIB))
    assert await notified(database, lambda: nodes.heartbeats([beat], NOON + timedelta(seconds=10))) == set()


async def test_routers_learn_of_every_change_after_its_commit(stage: Stage, nodes: Nodes, database: Database) -> None:
    """R8, R10, R11, R12, R88, H15: also of rows that go with their node, and never of a change that is rolled back."""
    model, node = await stage.deploy(), await gpu_node(nodes)
    loaded = await stage.load(model, node)
    assert ("routes", "llama") in await notified(database, lambda: stage.replicas.drain(PlannedDrain(loaded, "test")))

    async def rolled_back() -> None:
        async with database.session() as session:
            await session.execute(update(ReplicaRow).values(state="loaded"))
            await session.rollback()

    assert await notified(database, rolled_back) == set()
    gone = await notified(database, lambda: NodeLifecycle(database).remove(node.id, now=NOON))
    assert ("routes", "llama") in gone
    assert ("placement", "capacity") in gone

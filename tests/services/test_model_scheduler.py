"""The model scheduler and the starter of loads on the real store; nodes are rows, and loads end as the test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from nodesmith.contracts.temporal.operations import CancelRequest
from nodesmith.domain.deployment import Deployment, LoadSpec, Rule
from nodesmith.domain.errors import NodeDrained, NodesmithError, ServiceUnavailable
from nodesmith.domain.operation import Operation
from nodesmith.domain.replica import Replica, ReplicaState
from nodesmith.services.models.scheduler import ModelScheduler
from nodesmith.services.models.starter import ReplicaStarter
from nodesmith.store.database import Database
from nodesmith.store.models.holds import Holds
from nodesmith.store.models.snapshots import FleetSnapshots
from nodesmith.store.models.wakeups import PlacementFeed
from nodesmith.store.nodes.lifecycle import NodeLife
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.tables.models import ModelRow
from tests.databases import migrated_template, opened
from tests.deadlines import HANGS_S
from tests.servers import PostgresForTests
from tests.store.clock import NOON, SetClock
from tests.store.models import Stage, gpu_node

LOADED, LOADING, DRAINING = ReplicaState.LOADED, ReplicaState.LOADING, ReplicaState.DRAINING


@dataclass
class NoOperations:
    """No operation has a row; records cancels."""

    cancelled: list[str] = field(default_factory=list)

    async def find(self, op_id: str) -> Operation | None:
        return None

    async def cancel(self, workflow_id: str, request: CancelRequest) -> bool:
        self.cancelled.append(request.op_id)
        return True


@dataclass
class TestLoads:
    """Loads that the test ends."""

    __test__ = False
    started: list[tuple[str, LoadSpec | None]] = field(default_factory=list)
    error: NodesmithError | None = None

    async def start_load(self, replica: Replica, spec: LoadSpec) -> None:
        await self._start(replica, spec)

    async def start_unload(self, replica: Replica) -> None:
        await self._start(replica, None)

    async def _start(self, replica: Replica, spec: LoadSpec | None) -> None:
        if self.error is not None:
            raise self.error
        self.started.append((replica.op_id, spec))


@dataclass
class Control:
    """The scheduler and everything around it."""

    stage: Stage
    nodes: Nodes
    clock: SetClock
    scheduler: ModelScheduler
    loads: TestLoads
    starter: ReplicaStarter
    life: NodeLife

    async def tick(self, *, finish: bool = True, **facts: Any) -> None:
        """One tick; the loads and unloads that it leads to are started, and succeed unless told otherwise."""
        await self.scheduler.tick(**facts)
        await self.starter.once()
        if finish:
            await self.finish()

    async def finish(self) -> None:
        for op_id, spec in self.loads.started:
            if spec is None:
                await self.stage.replicas.gone(op_id)
            else:
                await self.stage.replicas.loaded(op_id, "here:1", 1)
        self.loads.started.clear()

    async def settle(self, ticks: int = 6) -> None:
        for _ in range(ticks):
            await self.tick(capacity_changed=True)

    async def states(self, name: str = "llama") -> dict[str, list[ReplicaState]]:
        """The states of a model's replicas, by node."""
        found: dict[str, list[ReplicaState]] = {}
        for each in await self.stage.of_model(name):
            found.setdefault(each.node_id, []).append(each.state)
        return found

    async def model(self, name: str = "llama") -> Deployment:
        found = await self.stage.deployments.find(name)
        assert found is not None
        return found


@pytest.fixture(scope="module")
async def models_database(postgres_server: PostgresForTests) -> AsyncIterator[Database]:
    template = await migrated_template(postgres_server)
    async with opened(await postgres_server.create_database(template=template)) as database:
        yield database


@pytest.fixture
async def control(models_database: Database) -> Control:
    clock, database = SetClock(), models_database
    stage, loads = Stage(database, clock), TestLoads()
    await stage.empty()
    nodes, life = Nodes(database, clock=clock), NodeLife(database, clock=clock)
    for node in await nodes.list():
        await life.remove(node.id, now=NOON)
    operations = NoOperations()
    scheduler = ModelScheduler(
        snapshots=FleetSnapshots(database, clock=clock),
        deployments=stage.deployments,
        replicas=stage.replicas,
        placing=stage.placing,
        holders=Holds(database, clock=clock),
        operations=operations,
        runs=operations,
    )
    starter = ReplicaStarter(stage.replicas, loads, PlacementFeed(database, every_s=1))
    return Control(stage, nodes, clock, scheduler, loads, starter, life)


async def test_deployment_is_loaded_up_to_its_minimum(control: Control) -> None:
    fleet = [await gpu_node(control.nodes) for _ in range(3)]
    model = await control.stage.deploy(rule=Rule(min_replicas=2, max_replicas=3), arguments=("-x",))
    await control.tick(finish=False)
    assert [spec for _, spec in control.loads.started] == [model.spec, model.spec]
    states = await control.states()
    assert list(states.values()) == [[LOADING], [LOADING]]
    assert states.keys() <= {node.id for node in fleet}
    await control.finish()
    assert list((await control.states()).values()) == [[LOADED], [LOADED]]


async def test_two_schedulers_at_once_do_no_harm(control: Control) -> None:
    for _ in range(6):
        await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=3, max_replicas=6))
    await asyncio.gather(*(control.scheduler.tick() for _ in range(4)))
    assert len(await control.stage.of_model("llama")) == 3
    await asyncio.gather(*(control.starter.once() for _ in range(3)))
    await control.finish()
    await control.stage.deployments.deploy((await control.model()).spec, Rule(min_replicas=1, max_replicas=1))
    await asyncio.gather(*(control.scheduler.tick() for _ in range(4)))
    left = [each for each in await control.stage.of_model("llama") if each.state is LOADED]
    assert len(left) == 1


async def test_placed_replica_is_started_after_a_crash(control: Control) -> None:
    """Between the row and the start everything may die: the next start uses the same operation id."""
    await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1))
    await control.scheduler.tick()
    [placed] = await control.stage.of_model("llama")
    control.loads.error = ServiceUnavailable("Temporal does not answer.")
    await control.starter.once()
    control.loads.error = None
    await control.starter.once()
    assert [op_id for op_id, _ in control.loads.started] == [placed.op_id]


async def test_refused_load_frees_the_replica_and_the_node_rests(control: Control) -> None:
    node = await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1))
    control.loads.error = NodeDrained("Node n1 is drained.")
    await control.tick()
    assert await control.states() == {}
    control.loads.error = None
    await control.tick()
    assert "failed there" in (await control.model()).unsatisfiable_why
    control.clock.forward(seconds=31)
    await control.nodes.touch_listening(control.clock())
    await control.tick()
    assert await control.states() == {node.id: [LOADED]}


async def test_lost_node_is_replaced_and_gives_its_replica_up_when_it_returns(control: Control) -> None:
    """H11."""
    first, second = await gpu_node(control.nodes), await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1))
    await control.settle(2)
    [lost] = (await control.states()).keys()
    spare = second.id if lost == first.id else first.id
    await control.nodes.mark_unreachable(lost, NOON)
    await control.tick()
    assert (await control.states()).keys() == {lost}, "for ten seconds it counts"
    control.clock.forward(seconds=10)
    await control.tick()
    assert await control.states() == {lost: [LOADED], spare: [LOADED]}
    await control.nodes.mark_reachable({lost: control.clock()})
    await control.settle(3)
    assert len(await control.states()) == 1


async def test_drain_moves_the_replica_first(control: Control) -> None:
    await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1))
    await control.settle(2)
    [old] = await control.stage.of_model("llama")
    await control.life.drain(old.node_id, now=NOON)
    await control.settle(3)
    assert await control.states() == {old.node_id: [LOADED]}, "nobody else can take it: it serves on"
    other = await gpu_node(control.nodes)
    await control.tick(finish=False, capacity_changed=True)
    assert await control.states() == {old.node_id: [LOADED], other.id: [LOADING]}
    await control.settle(4)
    assert await control.states() == {other.id: [LOADED]}


async def test_calls_finish_on_the_old_revision(control: Control) -> None:
    """A new revision is loaded first; the old one is drained, and unloaded only after its last call."""
    await gpu_node(control.nodes)
    await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1))
    await control.settle(2)
    holds = Holds(control.stage.database, clock=control.clock)
    call = await holds.acquire("llama", "router")
    assert call is not None
    await control.stage.deploy(arguments=("--new",), rule=Rule(min_replicas=1))
    await control.settle(4)
    states = {each.revision: each.state for each in await control.stage.of_model("llama")}
    assert states == {1: DRAINING, 2: LOADED}
    following = await holds.acquire("llama", "router")
    assert following is not None
    assert following.revision == 2
    assert await holds.release("router", call.id)
    await control.settle(2)
    assert {each.revision for each in await control.stage.of_model("llama")} == {2}


async def test_removed_model_is_unloaded(control: Control) -> None:
    """R36, H13: each replica once."""
    await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1))
    await control.settle(2)
    await control.stage.deployments.remove("llama")
    await control.settle(3)
    assert await control.states() == {}


async def test_model_removed_before_its_load_started(control: Control) -> None:
    await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1))
    await control.scheduler.tick()
    await control.stage.deployments.remove("llama")
    await control.settle(2)
    assert await control.states() == {}
    assert control.loads.started == []


async def test_idle_model_makes_room_for_one_that_is_wanted(control: Control) -> None:
    """H16: loaded on demand; the idle model above its minimum goes."""
    await gpu_node(control.nodes, gib=1)
    await control.stage.deploy("idle", rule=Rule(min_replicas=0, max_replicas=1))
    await control.stage.deployments.want("idle")
    await control.settle(2)
    assert len(await control.states("idle")) == 1
    await set_wanted(control, "idle", NOON - timedelta(hours=1))
    await control.stage.deploy("wanted", rule=Rule(min_replicas=1))
    await control.settle(4)
    assert await control.states("idle") == {}
    assert len(await control.states("wanted")) == 1


async def test_unsatisfiable_model_says_what_is_missing_until_something_changes(control: Control) -> None:
    """R86, H36: three ticks, then a rest; a node that could take it ends the rest at once."""
    await gpu_node(control.nodes, gib=1, name="small")
    await control.stage.deploy(memory=4 * 2**30, rule=Rule(min_replicas=1))
    for _ in range(3):
        await control.tick()
    resting = await control.model()
    assert resting.unsatisfiable_until == NOON + timedelta(minutes=5)
    assert "small: it has too little free memory: 4.0 GiB are needed" in resting.unsatisfiable_why
    large = await gpu_node(control.nodes, gib=8)
    await control.tick()
    assert await control.states() == {}, "the scheduler was not told"
    await control.tick(capacity_changed=True)
    assert await control.states() == {large.id: [LOADED]}
    assert (await control.model()).unsatisfiable_until is None


async def test_scheduler_is_woken_by_changes(control: Control) -> None:
    """R87, H36: and it learns whether what did not fit may fit now."""
    feed = PlacementFeed(control.stage.database, every_s=60, gather_s=0.05)
    async with asyncio.timeout(HANGS_S), aclosing(feed.wakeups()) as wakeups:
        assert await anext(wakeups), "at the start everything is tried"
        node = await gpu_node(control.nodes)
        assert await anext(wakeups), "a node could make room"
        await control.stage.deploy(rule=Rule(min_replicas=1))
        assert await anext(wakeups)
        await control.scheduler.tick()
        assert not await anext(wakeups), "a replica was placed: there is less room"
        await control.life.remove(node.id, now=NOON)
        assert await anext(wakeups)


async def test_clock_and_counters_survive_the_scheduler(control: Control) -> None:
    node = await gpu_node(control.nodes)
    await control.stage.deploy(rule=Rule(min_replicas=1, max_replicas=2))
    await control.settle(2)
    holds = Holds(control.stage.database, clock=control.clock)
    assert await holds.acquire("llama", "router")
    await control.tick()
    assert (await control.model()).last_busy_at == NOON
    assert (await control.states())[node.id] == [LOADED]


async def set_wanted(control: Control, name: str, when: Any) -> None:
    async with control.stage.database.session() as session:
        await session.execute(update(ModelRow).where(ModelRow.name == name).values(wanted_at=when, last_busy_at=when))

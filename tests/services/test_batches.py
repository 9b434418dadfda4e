"""Planning a batch: frozen targets, each kind of node its own build, everybody who is left out named."""

import uuid
from dataclasses import replace

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.batches import BatchActivities
from contracts.batches import BatchInput, BatchRequest, Verdict, WatchMembers, batch_workflow_id, member_op_id
from contracts.messages import Installed
from contracts.node_http import NodeView, RegisterRequest
from contracts.temporal import Policy
from domain.errors import ConcreteBackend, InvalidRequest, NotRetryable, OperationEnded, UnknownBatch, UnknownNode
from domain.node import Protocol
from domain.operation import Kind, Reason, State
from gallery.catalogue import Catalogue
from gallery.index import read_index
from gallery.tags import RegistryTags
from runtime.temporal import TemporalRuns
from services.batches import ORDERS, BatchDesk
from services.gate import Gate
from services.intents import Intents, UriRules
from services.registration import Registration
from store.batches import Batches
from store.database import Database
from store.idempotency import IdempotencyKeys
from store.inventory import InventoryTable
from store.labels import Labels
from store.nodes import Nodes
from store.operations import OperationTable
from tests.services.conftest import TOKEN, Join, no_access, now
from tests.store.transitions import a_request, transition

INDEX = """
- name: engine
  capabilities: {default: engine-cpu, nvidia: engine-cuda}
- name: engine-cpu
  version: "1"
  uri: https://host/engine-cpu.tar.gz
  sha256: {cpu}
- name: engine-cuda
  version: "1"
  uri: https://host/engine-cuda.tar.gz
  sha256: {cuda}
""".replace("{cpu}", "a" * 64).replace("{cuda}", "b" * 64)


@pytest.fixture
def inventory(database: Database) -> InventoryTable:
    return InventoryTable(database)


@pytest.fixture
def desk(database: Database, nodes: Nodes, runs: TemporalRuns, inventory: InventoryTable) -> BatchDesk:
    catalogue = Catalogue(read_index(INDEX, gallery="main").entries)
    return BatchDesk(
        nodes=nodes,
        inventory=inventory,
        batches=Batches(database),
        runs=runs,
        intents=Intents(catalogue, UriRules(frozenset({"https", "oci"})), RegistryTags(no_access)),
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )


async def with_card(registration: Registration, nodes: Nodes) -> NodeView:
    request = RegisterRequest(
        name=f"gpu-{uuid.uuid4()}", protocol=Protocol.NODESMITH, machine_id="m1", capability="nvidia"
    )
    node_id = (await registration.register(request, bearer=TOKEN)).id
    await registration.approve(node_id)
    node = await nodes.find(node_id)
    assert node is not None
    return node


async def test_a_meta_is_another_build_on_other_hardware_each_pinned_once(
    desk: BatchDesk, join: Join, registration: Registration, nodes: Nodes
) -> None:
    plain, gpu = await join(), await with_card(registration, nodes)
    plan = await desk._plan(BatchRequest(backend="engine", nodes=[plain.name, gpu.name]))
    assert {name: build.sha256[0] for name, build in plan.builds.items()} == {"default": "a", "nvidia": "b"}
    assert {build.family for build in plan.builds.values()} == {"engine"}


@pytest.mark.parametrize("where", [{"everywhere": True}, {"selector": "zone=a"}])
async def test_a_build_for_some_hardware_never_goes_to_everybody(desk: BatchDesk, where: dict[str, object]) -> None:
    """S63, H41: on every way that fans out, with the alternative."""
    with pytest.raises(ConcreteBackend, match="Ask for engine") as refused:
        await desk.start(BatchRequest.model_validate({"backend": "engine-cuda", **where}), actor="ada")
    assert refused.value.facts["meta_alternative"] == "engine"


async def test_a_build_for_some_hardware_goes_to_nodes_that_were_named(desk: BatchDesk, join: Join) -> None:
    node = await join()
    assert (await desk.plan(BatchRequest(backend="engine-cuda", nodes=[node.name]))).targets == 1


async def test_one_target_is_one_node_and_everywhere_is_everybody(desk: BatchDesk, join: Join) -> None:
    """S3: who is not named is not asked; who is not excluded is."""
    one, other = await join(), await join()
    named = await desk.start(BatchRequest(backend="engine", nodes=[one.name]), actor="ada")
    assert list(named.jobs) == [one.name]
    assert [member.node_name for member in await desk.batches.members(named.batch_id)] == [one.name]
    everybody = await desk.start(BatchRequest(backend="engine", everywhere=True), actor="ada")
    assert {one.name, other.name} <= everybody.jobs.keys()
    assert {node.name for node in await desk.nodes.list()} == everybody.jobs.keys() | everybody.skipped.keys()


async def test_a_selector_chooses_by_labels(desk: BatchDesk, join: Join, database: Database) -> None:
    """G12: selectors."""
    zone, wanted, other = f"z{uuid.uuid4().hex[:8]}", await join(), await join()
    await Labels(database).merge(wanted.id, {"zone": zone})
    await Labels(database).merge(other.id, {"zone": "elsewhere"})
    plan = await desk.plan(BatchRequest(backend="engine", selector=f"zone={zone}"))
    assert [member.node_name for member in plan.members] == [wanted.name]


async def test_who_may_not_get_work_is_left_out_by_name(desk: BatchDesk, join: Join) -> None:
    """S46: skipped, and named."""
    ready, pending, agent = await join(), await join(approved=False), await join(node_type="agent")
    request = BatchRequest(backend="engine", nodes=[ready.name, pending.name, agent.name])
    accepted = await desk.start(request, actor="ada")
    assert accepted.jobs == {ready.name: member_op_id(accepted.batch_id, ready.id)}
    assert accepted.skipped == {
        pending.name: "it waits for approval",
        agent.name: "it is of type agent and runs no backends",
    }
    members = {each.node_name: each.state for each in await desk.batches.members(accepted.batch_id)}
    assert members == {
        ready.name: "waiting_for_turn",
        pending.name: Verdict.SKIPPED,
        agent.name: Verdict.SKIPPED,
    }


async def test_an_upgrade_goes_only_where_it_is_installed(
    desk: BatchDesk, join: Join, inventory: InventoryTable
) -> None:
    """S55, #9678: only nodes that have it; none is a clear error."""
    has, has_not = await join(), await join()
    both = BatchRequest(kind=Kind.UPGRADE, backend="engine", nodes=[has.name, has_not.name])
    with pytest.raises(InvalidRequest, match="not installed on any"):
        await desk.start(both, actor="ada")
    await inventory.replace(has.id, [Installed(name="engine", version="0")], asked_at=now(), boot_id="b")
    plan = await desk.plan(both)
    assert {member.node_name: member.action for member in plan.members} == {has.name: "upgrade", has_not.name: "skip"}


async def test_removal_where_it_never_was_is_nothing_to_do(
    desk: BatchDesk, join: Join, inventory: InventoryTable
) -> None:
    has, has_not = await join(), await join()
    await inventory.replace(has.id, [Installed(name="engine", version="0")], asked_at=now(), boot_id="b")
    request = BatchRequest(kind=Kind.REMOVE, backend="engine", nodes=[has.name, has_not.name])
    accepted = await desk.start(request, actor="ada")
    assert list(accepted.jobs) == [has.name]
    members = {each.node_name: each.state for each in await desk.batches.members(accepted.batch_id)}
    assert members[has_not.name] == Verdict.NOTHING_TO_DO


async def test_the_same_key_is_the_same_batch(desk: BatchDesk, join: Join, runs: TemporalRuns) -> None:
    node = await join()
    request = BatchRequest(backend="engine", nodes=[node.name])
    first = await desk.start(request, actor="ada", idempotency_key="k")
    again = await desk.start(request, actor="ada", idempotency_key="k")
    assert (again.batch_id, again.jobs) == (first.batch_id, first.jobs)
    run = await runs.describe(batch_workflow_id(first.batch_id))
    assert run is not None


async def test_what_was_started_counts_when_the_nodes_have_changed_before_it_was_noted(
    desk: BatchDesk, join: Join, database: Database, client: Client, runs: TemporalRuns
) -> None:
    """The API died right after the start, nobody has written a row, and a node has joined: it is still that batch."""

    class DiesAfterStart(TemporalRuns):
        async def start_batch(self, batch: BatchInput) -> str:
            await super().start_batch(batch)
            raise ConnectionAbortedError

    zone, first, key = f"z{uuid.uuid4().hex[:8]}", await join(), str(uuid.uuid4())
    await Labels(database).merge(first.id, {"zone": zone})
    request = BatchRequest(backend="engine", selector=f"zone={zone}")
    mortal = replace(desk, runs=DiesAfterStart(client, queue=runs.queue))
    with pytest.raises(ConnectionAbortedError):
        await mortal.start(request, actor="ada", idempotency_key=key)
    await Labels(database).merge((await join()).id, {"zone": zone})
    again = await desk.start(request, actor="ada", idempotency_key=key)
    assert (list(again.jobs), again.repeated) == ([first.name], True)
    assert [member.node_name for member in await desk.batches.members(again.batch_id)] == [first.name]


async def test_of_two_replicas_that_see_other_nodes_the_first_to_start_decides(
    desk: BatchDesk, join: Join, client: Client, runs: TemporalRuns
) -> None:
    class Beaten(TemporalRuns):
        """Another replica starts the same batch in the same instant, and does not know the second node yet."""

        async def start_batch(self, batch: BatchInput) -> str:
            await super().start_batch(batch.model_copy(update={"targets": batch.targets[:1]}))
            return await super().start_batch(batch)

    one, two = await join(), await join()
    request = BatchRequest(backend="engine", nodes=[one.name, two.name])
    beaten = replace(desk, runs=Beaten(client, queue=runs.queue))
    accepted = await beaten.start(request, actor="ada", idempotency_key=str(uuid.uuid4()))
    assert list(accepted.jobs) == [one.name]
    assert [member.node_name for member in await desk.batches.members(accepted.batch_id)] == [one.name]


async def test_orders_need_a_batch_that_is_there_and_open(desk: BatchDesk, join: Join) -> None:
    with pytest.raises(UnknownBatch):
        await desk.order("nothing", ORDERS["pause"], actor="ada")
    with pytest.raises(UnknownBatch):
        await desk.retry("nothing", actor="ada")
    node = await join()
    batch = await desk.start(BatchRequest(backend="engine", nodes=[node.name]), actor="ada")
    with pytest.raises(NotRetryable):
        await desk.retry(batch.batch_id, actor="ada")
    await desk.runs._client.get_workflow_handle(batch_workflow_id(batch.batch_id)).terminate()  # type: ignore[attr-defined]
    with pytest.raises(OperationEnded):
        await desk.order(batch.batch_id, ORDERS["cancel"], actor="ada")


async def test_unknown_nodes_are_refused_by_name(desk: BatchDesk) -> None:
    with pytest.raises(UnknownNode, match="nobody"):
        await desk.plan(BatchRequest(backend="engine", nodes=["nobody"]))


async def test_who_cannot_be_asked_without_nats_keeps_its_place_in_the_window(
    nodes: Nodes, runs: TemporalRuns, operations: OperationTable, database: Database
) -> None:
    """Only a node that is away itself makes room: without NATS all would seem to be, and all begin at once after it."""
    unasked, away = a_request(), a_request()
    await operations.record(
        transition(unasked, State.WAITING, reason=Reason.NATS_DOWN),
        transition(away, State.WAITING, reason=Reason.NODE_AWAY),
    )
    activities = BatchActivities(Gate(operations, runs), nodes, operations, runs, Batches(database))
    watch = WatchMembers(batch_id="b", op_ids=(unasked.op_id, away.op_id))
    watched = await ActivityEnvironment().run(activities.watch_members, watch)
    assert (watched.away, watched.ended) == ((away.op_id,), {})

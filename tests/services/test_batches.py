"""Planning a batch: fixed targets, one build per capability, and every omitted node named."""

import uuid
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from nodesmith.activities.batches import BatchActivities
from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.temporal.batches import (
    BatchInput,
    MemberVerdict,
    WatchMembers,
    batch_workflow_id,
    member_op_id,
)
from nodesmith.contracts.temporal.operations import Policy
from nodesmith.domain.errors import (
    ConcreteBackend,
    InvalidRequest,
    NotRetryable,
    OperationEnded,
    UnknownBatch,
    UnknownNode,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Node, Protocol
from nodesmith.domain.operation import Reason, State
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.index import read_index
from nodesmith.gallery.tags import RegistryTags
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.batches.batches import ORDERS, BatchService
from nodesmith.services.nodes.registration import Registration
from nodesmith.services.operations.intents import Intents, UriRules
from nodesmith.services.operations.operation_lock import OperationLock
from nodesmith.services.requested_work import RequestedBatch
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.operations import OperationTable
from tests.services.conftest import TOKEN, Join, a_nats_key, artifact_check, no_access, now, orders_on
from tests.sources import LOCAL
from tests.store.transitions import a_request, transition

URIS = UriRules(frozenset({"https", "oci"}), sources=LOCAL)

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
def service(database: Database, nodes: Nodes, runs: TemporalRuns, inventory: InventoryTable) -> BatchService:
    catalogue = Catalogue(read_index(INDEX, gallery="main").entries)
    return BatchService(
        nodes=nodes,
        inventory=inventory,
        batches=Batches(database),
        runs=runs,
        intents=Intents(catalogue, URIS, RegistryTags(no_access, LOCAL), artifact_check()),
        orders=orders_on(database),
        keys=IdempotencyKeys(database),
        policy=Policy(),
        clock=now,
    )


async def with_card(registration: Registration, nodes: Nodes) -> Node:
    request = RegisterRequest(
        name=f"gpu-{uuid.uuid4()}",
        protocol=Protocol.NODESMITH,
        machine_id="m1",
        capability="nvidia",
        nats_key=a_nats_key(),
    )
    node_id = (await registration.register(request, bearer=TOKEN)).id
    await registration.approve(node_id)
    node = await nodes.find(node_id)
    assert node is not None
    return node


async def test_meta_resolves_to_one_pinned_build_per_hardware(
    service: BatchService, join: Join, registration: Registration, nodes: Nodes
) -> None:
    plain, gpu = await join(), await with_card(registration, nodes)
    plan = await service._plan(RequestedBatch(backend="engine", nodes=[plain.name, gpu.name]))
    assert {name: build.sha256[0] for name, build in plan.builds.items()} == {"default": "a", "nvidia": "b"}
    assert {build.family for build in plan.builds.values()} == {"engine"}


async def test_unknown_kind_is_refused_before_anything_starts(service: BatchService, join: Join) -> None:
    node = await join()
    asked = RequestedBatch(kind=Kind.UNKNOWN, backend="engine", nodes=[node.name])
    with pytest.raises(InvalidRequest, match="use one of install, upgrade, rollback, remove"):
        await service.start(asked, actor="ada")


@pytest.mark.parametrize("where", [{"everywhere": True}, {"selector": "zone=a"}])
async def test_hardware_specific_build_is_refused_for_the_whole_fleet(
    service: BatchService, where: dict[str, Any]
) -> None:
    """S63, H41: for every way to select many nodes, and the error names the alternative."""
    with pytest.raises(ConcreteBackend, match="Use engine") as refused:
        await service.start(RequestedBatch(backend="engine-cuda", **where), actor="ada")
    assert refused.value.facts["meta_alternative"] == "engine"


async def test_hardware_specific_build_is_accepted_for_named_nodes(service: BatchService, join: Join) -> None:
    node = await join()
    assert (await service.plan(RequestedBatch(backend="engine-cuda", nodes=[node.name]))).targets == 1


async def test_named_nodes_and_everywhere_select_exactly_their_targets(service: BatchService, join: Join) -> None:
    """S3: only named nodes are targets; `everywhere` targets all eligible ones."""
    one, other = await join(), await join()
    named = await service.start(RequestedBatch(backend="engine", nodes=[one.name]), actor="ada")
    assert list(named.operations) == [one.name]
    assert [member.node_name for member in await service.batches.members(named.batch_id)] == [one.name]
    everybody = await service.start(RequestedBatch(backend="engine", everywhere=True), actor="ada")
    assert {one.name, other.name} <= everybody.operations.keys()
    assert {node.name for node in await service.nodes.list()} == everybody.operations.keys() | everybody.skipped.keys()


async def test_a_selector_chooses_by_labels(service: BatchService, join: Join, database: Database) -> None:
    """G12: selectors."""
    zone, wanted, other = f"z{uuid.uuid4().hex[:8]}", await join(), await join()
    await Labels(database).merge(wanted.id, {"zone": zone})
    await Labels(database).merge(other.id, {"zone": "elsewhere"})
    plan = await service.plan(RequestedBatch(backend="engine", selector=f"zone={zone}"))
    assert [member.node_name for member in plan.members] == [wanted.name]


async def test_ineligible_nodes_are_left_out_by_name(service: BatchService, join: Join) -> None:
    """S46: skipped, and named."""
    ready, pending, agent = await join(), await join(approved=False), await join(node_type="agent")
    request = RequestedBatch(backend="engine", nodes=[ready.name, pending.name, agent.name])
    accepted = await service.start(request, actor="ada")
    assert accepted.operations == {ready.name: member_op_id(accepted.batch_id, ready.id)}
    assert accepted.skipped == {
        pending.name: "it waits for approval",
        agent.name: "it is of type agent and runs no backends",
    }
    members = {each.node_name: each.state for each in await service.batches.members(accepted.batch_id)}
    assert members == {
        ready.name: "waiting_for_turn",
        pending.name: MemberVerdict.SKIPPED,
        agent.name: MemberVerdict.SKIPPED,
    }


async def test_upgrade_targets_only_nodes_that_have_the_backend(
    service: BatchService, join: Join, inventory: InventoryTable
) -> None:
    """S55, #9678: only nodes that have the backend; a clear error if none has it."""
    has, has_not = await join(), await join()
    both = RequestedBatch(kind=Kind.UPGRADE, backend="engine", nodes=[has.name, has_not.name])
    with pytest.raises(InvalidRequest, match="not installed on any"):
        await service.start(both, actor="ada")
    await inventory.replace(has.id, [Installed(name="engine", version="0")], asked_at=now(), boot_id="b")
    plan = await service.plan(both)
    assert {member.node_name: member.action for member in plan.members} == {has.name: "upgrade", has_not.name: "skip"}


async def test_removal_of_a_backend_that_is_not_installed_has_nothing_to_do(
    service: BatchService, join: Join, inventory: InventoryTable
) -> None:
    has, has_not = await join(), await join()
    await inventory.replace(has.id, [Installed(name="engine", version="0")], asked_at=now(), boot_id="b")
    request = RequestedBatch(kind=Kind.REMOVE, backend="engine", nodes=[has.name, has_not.name])
    accepted = await service.start(request, actor="ada")
    assert list(accepted.operations) == [has.name]
    members = {each.node_name: each.state for each in await service.batches.members(accepted.batch_id)}
    assert members[has_not.name] == MemberVerdict.NOTHING_TO_DO


async def test_the_same_key_is_the_same_batch(service: BatchService, join: Join, runs: TemporalRuns) -> None:
    node = await join()
    request = RequestedBatch(backend="engine", nodes=[node.name])
    first = await service.start(request, actor="ada", idempotency_key="k")
    again = await service.start(request, actor="ada", idempotency_key="k")
    assert (again.batch_id, again.operations) == (first.batch_id, first.operations)
    run = await runs.describe(batch_workflow_id(first.batch_id))
    assert run is not None


async def test_started_batch_is_returned_when_nodes_changed_before_it_was_recorded(
    service: BatchService, join: Join, database: Database, client: Client, runs: TemporalRuns
) -> None:
    """The API crashed right after the start without a row, and a node joined since: the batch stays the same."""

    class DiesAfterStart(TemporalRuns):
        async def start_batch(self, batch: BatchInput) -> str:
            await super().start_batch(batch)
            raise ConnectionAbortedError

    zone, first, key = f"z{uuid.uuid4().hex[:8]}", await join(), str(uuid.uuid4())
    await Labels(database).merge(first.id, {"zone": zone})
    request = RequestedBatch(backend="engine", selector=f"zone={zone}")
    mortal = replace(service, runs=DiesAfterStart(client, queue=runs.queue))
    with pytest.raises(ConnectionAbortedError):
        await mortal.start(request, actor="ada", idempotency_key=key)
    await Labels(database).merge((await join()).id, {"zone": zone})
    again = await service.start(request, actor="ada", idempotency_key=key)
    assert (list(again.operations), again.repeated) == ([first.name], True)
    assert [member.node_name for member in await service.batches.members(again.batch_id)] == [first.name]


async def test_first_replica_to_start_a_batch_decides_its_targets(
    service: BatchService, join: Join, client: Client, runs: TemporalRuns
) -> None:
    class Beaten(TemporalRuns):
        """Another replica starts the same batch concurrently, without knowing the second node."""

        async def start_batch(self, batch: BatchInput) -> str:
            await super().start_batch(batch.model_copy(update={"targets": batch.targets[:1]}))
            return await super().start_batch(batch)

    one, two = await join(), await join()
    request = RequestedBatch(backend="engine", nodes=[one.name, two.name])
    beaten = replace(service, runs=Beaten(client, queue=runs.queue))
    accepted = await beaten.start(request, actor="ada", idempotency_key=str(uuid.uuid4()))
    assert list(accepted.operations) == [one.name]
    assert [member.node_name for member in await service.batches.members(accepted.batch_id)] == [one.name]


async def test_batch_orders_need_an_existing_open_batch(service: BatchService, join: Join) -> None:
    with pytest.raises(UnknownBatch):
        await service.order("nothing", ORDERS["pause"], actor="ada")
    with pytest.raises(UnknownBatch):
        await service.retry("nothing", actor="ada")
    node = await join()
    batch = await service.start(RequestedBatch(backend="engine", nodes=[node.name]), actor="ada")
    with pytest.raises(NotRetryable):
        await service.retry(batch.batch_id, actor="ada")
    await service.runs._client.get_workflow_handle(batch_workflow_id(batch.batch_id)).terminate()  # type: ignore[attr-defined]
    with pytest.raises(OperationEnded):
        await service.order(batch.batch_id, ORDERS["cancel"], actor="ada")


async def test_unknown_nodes_are_refused_by_name(service: BatchService) -> None:
    with pytest.raises(UnknownNode, match="nobody"):
        await service.plan(RequestedBatch(backend="engine", nodes=["nobody"]))


async def test_node_unreachable_because_of_nats_keeps_its_batch_slot(
    nodes: Nodes, runs: TemporalRuns, operations: OperationTable, database: Database
) -> None:
    """Only an absent node releases its slot: during a NATS outage all seem absent, and all would start afterwards."""
    unasked, away = a_request(), a_request()
    await operations.record(
        transition(unasked, State.WAITING, reason=Reason.NATS_DOWN),
        transition(away, State.WAITING, reason=Reason.NODE_AWAY),
    )
    activities = BatchActivities(OperationLock(operations, runs, None), nodes, operations, runs, Batches(database))
    watch = WatchMembers(batch_id="b", op_ids=(unasked.op_id, away.op_id))
    watched = await ActivityEnvironment().run(activities.watch_members, watch)
    assert (watched.away, watched.ended) == ((away.op_id,), {})

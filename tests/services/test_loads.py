"""Loads and unloads: admitted as operations with a signed order, and their ends passed on to the replicas."""

from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter

from nodesmith.contracts.nats.loads import ReplicaReport
from nodesmith.contracts.nats.messages import Installed, Outcome, Result
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.contracts.temporal.locks import replica_workflow_id
from nodesmith.contracts.temporal.operations import OperationInput, OperationRequest
from nodesmith.domain.deployment import LoadSpec, ModelFile
from nodesmith.domain.errors import InvalidRequest, NodeCannot, NodeDrained, NotRetryable, OperationConflict
from nodesmith.domain.identity import new_op_id
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import DrainPolicy, Node, Protocol
from nodesmith.domain.operation import Reason, State
from nodesmith.domain.replica import Replica, ReplicaState, ReportedReplica
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.access.source_secrets import hosts_of
from nodesmith.services.models.loads import SCHEDULER, ModelLoads
from nodesmith.services.nodes.identity_claims import DuplicateIdentities
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.liveness import REPEAT_REPORT, Liveness
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.services.requested_work import RequestedBackend
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.operations.permits import PermitTable
from tests.fakes.node_link import AcceptingProofs, SimulatedLink, SimulatedPresence
from tests.services.conftest import Join, now
from tests.services.replica_records import RecordedReplicas
from tests.store.transitions import transition

FILE = ModelFile(uri="https://models.example.com/llama.gguf", sha256="a" * 64, name="llama.gguf", size=1000)
SPEC = LoadSpec(
    model="llama",
    revision=3,
    backend="echo",
    files=(FILE,),
    arguments=("--model", "{file}"),
    environment=(("HF_TOKEN", "s3cret"),),
)


@pytest.fixture
def inventory(database: Database) -> InventoryTable:
    return InventoryTable(database)


@pytest.fixture
def loads(admission: Admission, nodes: Nodes, inventory: InventoryTable) -> ModelLoads:
    return ModelLoads(
        nodes=nodes,
        inventory=inventory,
        admission=admission,
        lock=admission.lock,
        intents=admission.intents,
        policy=admission.policy,
        clock=now,
    )


def a_replica(node: Node, index: int = 0) -> Replica:
    return Replica(
        id=new_op_id(),
        node_id=node.id,
        model="llama",
        index=index,
        revision=3,
        state=ReplicaState.PLACING,
        op_id=new_op_id(),
        created_at=now(),
        changed_at=now(),
    )


async def has_backend(inventory: InventoryTable, node: Node, *families: str) -> None:
    installed = [Installed(name=family, family=family, version="1") for family in families]
    await inventory.replace(node.id, installed, asked_at=now(), boot_id=node.boot_id)


async def test_load_is_an_operation_with_a_signed_order(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, runs: TemporalRuns, join: Join
) -> None:
    node = await join()
    await has_backend(inventory, node, "echo")
    replica = a_replica(node)
    await loads.start_load(replica, SPEC)
    row = await admission.operations.find(replica.op_id)
    assert row is not None
    assert (row.kind, row.backend, row.family, row.requested_by) == (Kind.LOAD, "llama#0", "echo", SCHEDULER)
    assert row.workflow_id == replica_workflow_id(node.id, "llama", 0) == f"model:{node.id}:llama#0"
    run = await runs.describe(row.workflow_id)
    assert run is not None
    assert run.op_id == replica.op_id
    order = await admission.orders.read(replica.op_id)
    assert order is not None
    assert order.load is not None
    assert order.load.spec == SPEC
    assert (order.lock, order.model_id, order.replica_index) == ("model:llama#0", "llama", 0)
    assert hosts_of(order) >= {"models.example.com"}


async def test_secrets_of_a_deployment_are_only_in_the_order(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, runs: TemporalRuns, join: Join
) -> None:
    """Viewers read operations, and everybody with access to Temporal reads the input of a run."""
    node = await join()
    await has_backend(inventory, node, "echo")
    replica = a_replica(node)
    await loads.start_load(replica, SPEC)
    request = await admission.operations.request(replica.op_id)
    assert request is not None
    history = await runs._client.get_workflow_handle(replica_workflow_id(node.id, "llama", 0)).fetch_history()
    assert "s3cret" not in request.model_dump_json()
    assert "s3cret" not in history.to_json()
    assert b"s3cret" not in b"".join(event.SerializeToString() for event in history.events)
    assert "s3cret" not in repr(await admission.orders.read(replica.op_id))


async def test_a_load_has_one_attempt_and_does_not_wait_for_its_node(
    loads: ModelLoads, inventory: InventoryTable, runs: TemporalRuns, join: Join
) -> None:
    node = await join()
    await has_backend(inventory, node, "echo")
    await loads.start_load(a_replica(node), SPEC)
    history = await runs._client.get_workflow_handle(replica_workflow_id(node.id, "llama", 0)).fetch_history()
    payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
    (started,) = await pydantic_data_converter.decode(payloads, [OperationInput])
    policy = started.policy
    assert (policy.wait_for_node, policy.lost_after, policy.max_attempts) == (timedelta(0), timedelta(minutes=2), 1)


async def test_replicas_of_one_backend_do_not_lock_each_other(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, join: Join
) -> None:
    node = await join()
    await has_backend(inventory, node, "echo")
    first, second = a_replica(node), a_replica(node, index=1)
    await loads.start_load(first, SPEC)
    await loads.start_load(second, SPEC)
    await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo"), actor="ada")
    states = await admission.operations.states([first.op_id, second.op_id])
    assert set(states) == {first.op_id, second.op_id}


async def test_a_repeated_start_joins_the_operation(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, join: Join
) -> None:
    """The scheduler starts a row again after a crash; there must be one run and one order."""
    node = await join()
    await has_backend(inventory, node, "echo")
    replica = a_replica(node)
    await loads.start_load(replica, SPEC)
    first = await admission.orders.read(replica.op_id)
    await loads.start_load(replica, SPEC)
    assert await admission.orders.read(replica.op_id) == first


async def test_a_missing_backend_is_installed_first(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, join: Join
) -> None:
    """The load waits for the installation, and another load joins it."""
    node = await join()
    await has_backend(inventory, node)
    first, second = a_replica(node), a_replica(node, index=1)
    await loads.start_load(first, SPEC)
    await loads.start_load(second, SPEC)
    waiting = [await admission.operations.request(each.op_id) for each in (first, second)]
    (after,) = {each.after for each in waiting if each is not None}
    install = await admission.operations.find(after)
    assert install is not None
    assert (install.kind, install.backend, install.requested_by) == (Kind.INSTALL, "echo", SCHEDULER)
    assert install.note == "needed to load llama"


async def test_a_load_waits_for_whatever_installs_the_backend_already(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, join: Join
) -> None:
    node = await join()
    await has_backend(inventory, node)
    forced = await admission.ask(Kind.INSTALL, node.id, RequestedBackend(backend="echo", force=True), actor="ada")
    await admission.operations.record(
        transition(await _request(admission, forced.op_id), State.RUNNING, seq=1, dispatched_at=now())
    )
    replica = a_replica(node)
    await loads.start_load(replica, SPEC)
    assert (await _request(admission, replica.op_id)).after == forced.op_id


async def _request(admission: Admission, op_id: str) -> OperationRequest:
    request = await admission.operations.request(op_id)
    assert request is not None
    return request


async def test_a_stale_inventory_is_no_reason_to_install(loads: ModelLoads, admission: Admission, join: Join) -> None:
    """An installation could replace the version that runs there; the node says if the backend is missing."""
    replica = a_replica(await join())
    await loads.start_load(replica, SPEC)
    assert (await _request(admission, replica.op_id)).after == ""


async def test_localai_workers_load_nothing(loads: ModelLoads, join: Join) -> None:
    replica = a_replica(await join(protocol=Protocol.LOCALAI))
    for start in (loads.start_load(replica, SPEC), loads.start_unload(replica)):
        with pytest.raises(NodeCannot, match="LocalAI worker") as refused:
            await start
        assert refused.value.facts["routable"] is False


async def test_a_drained_node_loads_nothing_and_unloads(
    loads: ModelLoads, lifecycle: Lifecycle, admission: Admission, join: Join
) -> None:
    node = await join()
    await lifecycle.drain(node.id, running=DrainPolicy.FINISH, actor="ada")
    replica = a_replica(node)
    with pytest.raises(NodeDrained):
        await loads.start_load(replica, SPEC)
    await loads.start_unload(replica)
    order = await admission.orders.read(replica.op_id)
    assert order is not None
    assert (order.kind, order.lock, order.load) == (Kind.UNLOAD, "model:llama#0", None)


async def test_a_file_from_a_forbidden_place_is_refused(loads: ModelLoads, join: Join) -> None:
    replica = a_replica(await join())
    for uri in ("ftp://example.com/model", "ghcr.io/some/model:1"):
        spec = LoadSpec(
            model="llama", revision=3, backend="echo", files=(ModelFile(uri=uri, sha256="a" * 64, name="m"),)
        )
        with pytest.raises(InvalidRequest):
            await loads.start_load(replica, spec)


async def test_a_file_of_the_control_plane_is_allowed(loads: ModelLoads, admission: Admission, join: Join) -> None:
    replica = a_replica(await join())
    await loads.start_load(replica, replace(SPEC, files=(replace(FILE, uri="/artifacts/model.gguf"),)))
    assert await admission.orders.read(replica.op_id) is not None


async def test_an_unload_does_not_pass_a_load_that_runs(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, join: Join
) -> None:
    node = await join()
    await has_backend(inventory, node, "echo")
    replica = a_replica(node)
    await loads.start_load(replica, SPEC)
    await admission.operations.record(
        transition(await _request(admission, replica.op_id), State.RUNNING, seq=1, dispatched_at=now())
    )
    with pytest.raises(OperationConflict, match="llama#0"):
        await loads.start_unload(a_replica(node))


async def test_people_cannot_retry_a_load(
    loads: ModelLoads, inventory: InventoryTable, admission: Admission, join: Join
) -> None:
    node = await join()
    await has_backend(inventory, node, "echo")
    replica = a_replica(node)
    await loads.start_load(replica, SPEC)
    ended = transition(
        await _request(admission, replica.op_id), State.FAILED, seq=1, reason=Reason.DID_NOT_START, ended_at=now()
    )
    await admission.operations.record(ended)
    with pytest.raises(NotRetryable, match="model scheduler"):
        await admission.retry(replica.op_id, actor="ada")


# ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state", "reason", "told"),
    [
        (Kind.LOAD, State.SUCCEEDED, None, ("loaded", "127.0.0.1:21000", 42)),
        (Kind.LOAD, State.FAILED, Reason.DID_NOT_START, ("failed", "did_not_start")),
        (Kind.LOAD, State.EXPIRED, Reason.NODE_NEVER_CAME, ("failed", "node_never_came")),
        (Kind.LOAD, State.CANCELLED, Reason.REQUESTED, ("gone",)),
        (Kind.UNLOAD, State.SUCCEEDED, None, ("gone",)),
        (Kind.UNLOAD, State.FAILED, Reason.STILL_RUNS, ("failed", "still_runs")),
        (Kind.UNLOAD, State.CANCELLED, Reason.REQUESTED, ("failed", "requested")),
        (Kind.INSTALL, State.SUCCEEDED, None, None),
        (Kind.LOAD, State.RUNNING, None, None),
    ],
)
async def test_the_end_of_a_load_or_unload_reaches_its_replica(
    loads: ModelLoads,
    admission: Admission,
    operations: OperationTable,
    inventory: InventoryTable,
    join: Join,
    kind: Kind,
    state: State,
    reason: Reason | None,
    told: tuple[object, ...] | None,
) -> None:
    """Also when the write is repeated after a crash: the first one may have died between row and replica."""
    node, replicas = await join(), RecordedReplicas()
    await has_backend(inventory, node, "echo")
    replica = a_replica(node)
    match kind:
        case Kind.LOAD:
            await loads.start_load(replica, SPEC)
        case Kind.UNLOAD:
            await loads.start_unload(replica)
        case _:
            accepted = await admission.ask(kind, node.id, RequestedBackend(backend="echo"), actor="ada")
            replica = replace(replica, op_id=accepted.op_id)
    outcome = None
    if state is State.SUCCEEDED:
        addresses = {"llama#0": "127.0.0.1:21000"} if kind is Kind.LOAD else {}
        outcome = Outcome(op_id=replica.op_id, result=Result.SUCCEEDED, addresses=addresses, report=42)
    request = await _request(admission, replica.op_id)
    row = transition(request, state, seq=1, ended_at=now(), reason=reason, outcome=outcome)
    records = VerifiedRecords(operations, AcceptingProofs(), replicas)
    await records.record(row)
    await records.record(row)
    expected = [(told[0], replica.op_id, *told[1:])] * 2 if told else []
    assert replicas.calls == expected


async def test_an_end_that_is_refused_because_the_command_was_sent_tells_nothing(
    loads: ModelLoads, operations: OperationTable, inventory: InventoryTable, admission: Admission, join: Join
) -> None:
    node, replicas = await join(), RecordedReplicas()
    await has_backend(inventory, node, "echo")
    replica = a_replica(node)
    await loads.start_load(replica, SPEC)
    await PermitTable(operations._database).permit(replica.op_id, 1, token="a", on_node=False)
    request = await _request(admission, replica.op_id)
    row = transition(request, State.EXPIRED, seq=1, ended_at=now(), reason=Reason.NODE_NEVER_CAME)
    await VerifiedRecords(operations, AcceptingProofs(), replicas).record(row, only_unsent=True)
    assert replicas.calls == []


# reports ----------------------------------------------------------------------------------------------------------


async def test_reports_of_nodes_are_recorded_when_they_change(
    nodes: Nodes,
    operations: OperationTable,
    life: NodeLifecycle,
    presence: SimulatedPresence,
    runs: TemporalRuns,
    inventory: InventoryTable,
    join: Join,
) -> None:
    """Only what is ready is reported, once per change and once a minute; unknown nodes and old agents not at all."""
    node, replicas, moment = await join(), RecordedReplicas(), now()
    liveness = Liveness(
        nodes,
        operations,
        runs,
        SimulatedLink(),
        DuplicateIdentities(life, presence),
        inventory,
        lambda: moment,
        replicas,
    )

    def beat(number: int, *states: ReplicaState, node_id: str = node.id) -> Heartbeat:
        reports = [ReplicaReport(model="llama", index=at, state=state, op_id="x") for at, state in enumerate(states)]
        return Heartbeat(
            node_id=node_id, boot_id=node.boot_id, seq=number, at=now(), number=100 + number, replicas=reports
        )

    loaded = ReportedReplica(model="llama", index=0, op_id="x")
    await liveness.process([beat(1, ReplicaState.LOADED, ReplicaState.LOADING)])
    await liveness.process([beat(2, ReplicaState.LOADED, ReplicaState.UNLOADING)])
    await liveness.process([beat(3), beat(1, node_id="unknown")])
    moment += REPEAT_REPORT
    await liveness.process([beat(4)])
    await liveness.process([Heartbeat(node_id=node.id, boot_id=node.boot_id, seq=5, at=now())])
    assert replicas.reports == [
        (node.id, node.boot_id, 101, [loaded]),
        (node.id, node.boot_id, 103, []),
        (node.id, node.boot_id, 104, []),
    ]

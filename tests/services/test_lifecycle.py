"""Lifecycle of a node: the admin's decisions, the node's own messages, and the effect on its operations."""

import asyncio
from datetime import timedelta

import pytest

from nodesmith.contracts.nats.presence import Heartbeat, StopOrder, StopWhy
from nodesmith.contracts.temporal.operations import CancelRequest, OperationRequest
from nodesmith.domain.errors import NodeRemoved, ServiceUnavailable, UnknownNode
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import DrainPolicy, Node, NodeStatus
from nodesmith.domain.operation import Reason, State
from nodesmith.domain.operation_filter import OperationFilter, OperationScope
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.registration import Registration
from nodesmith.store.database import Database
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from tests.fakes.node_link import SimulatedPresence, SimulatedRevocation
from tests.services.conftest import TOKEN, Join, now
from tests.services.test_registration import a_node
from tests.store.transitions import a_request, transition


class RecordedSignals:
    """Records every signalled cancel; can simulate a Temporal outage."""

    def __init__(self) -> None:
        self.sent: dict[str, CancelRequest] = {}
        self.is_away = False

    async def cancel(self, _workflow_id: str, request: CancelRequest) -> bool:
        if self.is_away:
            raise ServiceUnavailable("Temporal does not answer.")
        self.sent[request.op_id] = request
        return True


@pytest.fixture
def signals() -> RecordedSignals:
    return RecordedSignals()


@pytest.fixture
def lifecycle(nodes: Nodes, life: NodeLifecycle, signals: RecordedSignals, presence: SimulatedPresence) -> Lifecycle:
    return Lifecycle(nodes, life, signals, presence, now, SimulatedRevocation())


async def begun(operations: OperationTable, node: Node, state: State, kind: Kind = Kind.INSTALL) -> str:
    """An operation on that node, in that state."""
    asked = a_request(node_id=node.id, backend=f"{kind}-{state}")
    request = asked.model_copy(update={"wanted": asked.wanted.model_copy(update={"kind": kind})})
    on_node = state in (State.RUNNING, State.STILL_INSTALLING, State.CANCELLING)
    await operations.record(transition(request, state, dispatched_at=now() if on_node else None))
    return request.op_id


async def look(nodes: Nodes, node: Node) -> Node:
    seen = await nodes.find(node.id)
    assert seen is not None
    return seen


async def heard(nodes: Nodes, node: Node, boot_id: str = "") -> None:
    await nodes.touch_listening(now())
    await nodes.heartbeats([Heartbeat(node_id=node.id, boot_id=boot_id)], now())


# drain and resume ---------------------------------------------------------------------------------------------


async def test_drain_ends_undispatched_operations_and_lets_running_ones_finish(
    lifecycle: Lifecycle, join: Join, operations: OperationTable, signals: RecordedSignals
) -> None:
    """S26, R29, H6: waiting operations end at once, and running ones are not interrupted."""
    node = await join()
    begin = {state: await begun(operations, node, state) for state in (State.QUEUED, State.WAITING, State.RUNNING)}
    reported = await lifecycle.drain(node.name, running=DrainPolicy.FINISH, actor="ada", reason="new disks")
    assert (reported.message, reported.status) == ("node set to draining", NodeStatus.DRAINING)
    assert set(reported.cancelled) == set(signals.sent) == {begin[State.QUEUED], begin[State.WAITING]}
    assert {each.why for each in signals.sent.values()} == {Reason.NODE_DRAINED}
    assert {(each.by, each.detail, each.force) for each in signals.sent.values()} == {("ada", "new disks", False)}


async def test_drain_cancels_running_operations_on_request_except_removals(
    lifecycle: Lifecycle, join: Join, operations: OperationTable, signals: RecordedSignals
) -> None:
    node = await join()
    running = await begun(operations, node, State.RUNNING)
    await begun(operations, node, State.RUNNING, Kind.REMOVE)
    still = await begun(operations, node, State.STILL_INSTALLING)
    reported = await lifecycle.drain(node.id, running=DrainPolicy.CANCEL, actor="ada")
    assert set(reported.cancelled) == set(signals.sent) == {running, still}


async def test_drain_lasts_until_an_admin_resumes_the_node(
    lifecycle: Lifecycle, join: Join, nodes: Nodes, registration: Registration
) -> None:
    """H4, R14c (superseded by H4), R90: a renewal, a new boot, a heartbeat and the node's own resume change nothing."""
    node = await join()
    await lifecycle.drain(node.id, running=DrainPolicy.FINISH, actor="ada")
    first = (await look(nodes, node)).drained_at
    await registration.register(a_node(name=node.name, boot_id="boot-2"), bearer=TOKEN)
    await heard(nodes, node, "boot-2")
    await lifecycle.leaving(node)
    await lifecycle.left(node)
    await lifecycle.stayed(node)
    await lifecycle.drain(node.id, running=DrainPolicy.FINISH, actor="bob")
    drained = await look(nodes, node)
    assert (drained.status, drained.drained_at) == (NodeStatus.DRAINING, first)
    resumed = await lifecycle.resume(node.id)
    assert (resumed.message, resumed.status) == ("node resumed", NodeStatus.HEALTHY)


async def test_neither_resume_approves(lifecycle: Lifecycle, join: Join, nodes: Nodes) -> None:
    """H1, H3, R17 and R28 (superseded): no status is ever written, so none can be set past the approval."""
    node = await join(approved=False)
    await lifecycle.stayed(node)
    await lifecycle.resume(node.id)
    await heard(nodes, node)
    assert (await look(nodes, node)).status is NodeStatus.PENDING


# messages of the node -----------------------------------------------------------------------------------------


async def test_node_that_leaves_is_offline_at_once_and_stays_offline(
    lifecycle: Lifecycle, join: Join, nodes: Nodes, registration: Registration
) -> None:
    """H5, R18: a late heartbeat of a node that left changes nothing; registering again does, approval is kept."""
    node = await join()
    await heard(nodes, node)
    await lifecycle.leaving(node)
    assert (await look(nodes, node)).status is NodeStatus.DRAINING
    await lifecycle.left(node)
    await heard(nodes, node)
    assert (await look(nodes, node)).status is NodeStatus.OFFLINE
    await registration.register(a_node(name=node.name, boot_id="boot-2"), bearer=TOKEN)
    await heard(nodes, node, "boot-2")
    assert (await look(nodes, node)).status is NodeStatus.HEALTHY


async def test_a_reboot_is_not_a_drain(
    lifecycle: Lifecycle, join: Join, operations: OperationTable, signals: RecordedSignals
) -> None:
    """The operations of a node that leaves by itself wait for it."""
    node = await join()
    await begun(operations, node, State.RUNNING)
    await lifecycle.leaving(node)
    await lifecycle.left(node)
    assert signals.sent == {}


async def test_late_leave_message_of_an_earlier_boot_changes_nothing(
    lifecycle: Lifecycle, join: Join, nodes: Nodes, registration: Registration
) -> None:
    node = await join()
    await registration.register(a_node(name=node.name, boot_id="boot-2"), bearer=TOKEN)
    await lifecycle.left(node, boot_id="boot-1")
    assert (await look(nodes, node)).left_at is None
    await lifecycle.left(node, boot_id="boot-2")
    assert (await look(nodes, node)).left_at is not None


# remove -------------------------------------------------------------------------------------------------------


async def test_removing_a_node_ends_its_operations_and_keeps_their_history(
    lifecycle: Lifecycle, join: Join, nodes: Nodes, operations: OperationTable, signals: RecordedSignals
) -> None:
    """R22, H10: the node is away, so its operations end without an outcome."""
    node = await join()
    doomed = {await begun(operations, node, state) for state in (State.QUEUED, State.RUNNING, State.CANCELLING)}
    ended = await begun(operations, node, State.SUCCEEDED)
    reported = await lifecycle.remove(node.name, actor="ada", reason="scrapped")
    assert (reported.message, set(reported.cancelled)) == ("node deregistered", doomed)
    assert {each.why for each in signals.sent.values()} == {Reason.NODE_REMOVED}
    assert all(each.force for each in signals.sent.values())
    assert await nodes.find(node.id) is None
    history = (await operations.listing(OperationFilter(node=node.id), scope=OperationScope.ALL)).operations
    assert {row.op_id for row in history} == doomed | {ended}


async def test_reachable_node_receives_its_cancels_from_the_workflow(
    lifecycle: Lifecycle,
    join: Join,
    nodes: Nodes,
    operations: OperationTable,
    signals: RecordedSignals,
    presence: SimulatedPresence,
) -> None:
    """So its process is not stopped before it received the cancel; its next heartbeat stops it."""
    node = await join()
    await heard(nodes, node)
    running = await begun(operations, node, State.RUNNING)
    await lifecycle.remove(node.id, actor="ada")
    assert not signals.sent[running].force
    assert presence.stop_orders == []


async def test_credential_of_a_busy_removed_node_is_revoked_after_its_cancels(
    lifecycle: Lifecycle, operations: OperationTable, join: Join, presence: SimulatedPresence
) -> None:
    """The stop order is sent last, because the process disconnects after it."""
    revocation = lifecycle.revocation
    assert isinstance(revocation, SimulatedRevocation)
    idle, busy = await join(), await join()
    await begun(operations, busy, State.RUNNING)
    await lifecycle.remove(idle.id, actor="ada")
    assert (revocation.enforced, revocation.later) == (1, [])
    await lifecycle.remove(busy.id, actor="ada")
    ((is_done, stop),) = revocation.later
    assert revocation.enforced == 1
    assert not await is_done()
    await stop()
    assert [node_id for node_id, _ in presence.stop_orders] == [idle.id, busy.id]


async def test_an_idle_node_is_stopped_at_once(lifecycle: Lifecycle, join: Join, presence: SimulatedPresence) -> None:
    """H8."""
    node = await join()
    await lifecycle.remove(node.id, actor="ada")
    assert presence.stop_orders == [(node.id, StopOrder(why=StopWhy.REMOVED))]


async def test_nothing_is_removed_while_its_operations_cannot_be_ended(
    lifecycle: Lifecycle, join: Join, nodes: Nodes, operations: OperationTable, signals: RecordedSignals
) -> None:
    """R22a, H44: an error leaves everything as it was."""
    node = await join()
    await begun(operations, node, State.RUNNING)
    signals.is_away = True
    with pytest.raises(ServiceUnavailable):
        await lifecycle.remove(node.id, actor="ada")
    assert await nodes.find(node.id) is not None
    with pytest.raises(UnknownNode):
        await lifecycle.remove("nobody", actor="ada")


async def test_removed_node_that_registers_again_gets_the_reason(
    lifecycle: Lifecycle, registration: Registration
) -> None:
    """H8."""
    request = a_node()
    own = await registration.register(request, bearer=TOKEN)
    await lifecycle.remove(own.id, actor="ada")
    with pytest.raises(NodeRemoved, match="was removed by an admin"):
        await registration.register(request, bearer=own.api_token or "")
    anew = await registration.register(request, bearer=TOKEN)
    assert (anew.id != own.id, anew.status) == (True, NodeStatus.PENDING)


# the sweep ----------------------------------------------------------------------------------------------------


async def test_monitor_ends_operations_admitted_during_a_drain_or_removal(
    lifecycle: Lifecycle, join: Join, operations: OperationTable, signals: RecordedSignals, database: Database
) -> None:
    drained, removed = await join(), await join()
    admitted_before = transition(_created(drained, -60), State.QUEUED)
    on_purpose = transition(_created(drained, 60, backend="on-drained"), State.QUEUED)
    begun_before = transition(_created(drained, -60, backend="runs"), State.RUNNING, dispatched_at=now())
    await lifecycle.drain(drained.id, running=DrainPolicy.FINISH, actor="ada")
    await lifecycle.remove(removed.id, actor="ada")
    homeless = transition(_created(removed, -60), State.WAITING)
    await operations.record(admitted_before, on_purpose, begun_before, homeless)
    signals.sent.clear()
    await asyncio.gather(lifecycle.sweep(), lifecycle.sweep())
    ours = {admitted_before.request.op_id, on_purpose.request.op_id, begun_before.request.op_id, homeless.request.op_id}
    sent = {op_id: (each.why, each.force) for op_id, each in signals.sent.items() if op_id in ours}
    assert sent == {
        admitted_before.request.op_id: (Reason.NODE_DRAINED, False),
        homeless.request.op_id: (Reason.NODE_REMOVED, True),
    }


def _created(node: Node, seconds: float, *, backend: str = "echo") -> OperationRequest:
    request = a_request(node_id=node.id, backend=backend)
    return request.model_copy(update={"created_at": now() + timedelta(seconds=seconds)})

"""Liveness: heartbeats refresh nodes, wake and stop operations, and expose duplicate identities."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from nodesmith.contracts.nats.messages import (
    BackendList,
    CancelAnswer,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    OpReply,
    Outcome,
    Result,
)
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.contracts.nats.presence import Heartbeat, StopOrder, StopWhy
from nodesmith.contracts.temporal.operations import Run
from nodesmith.domain.errors import NodeAway, ServiceUnavailable
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import Node, NodeStatus
from nodesmith.domain.operation import Reason, State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.nodes.identity_claims import DuplicateIdentities
from nodesmith.services.nodes.lifecycle import Lifecycle
from nodesmith.services.nodes.liveness import WAKES_PER_SECOND, Liveness
from nodesmith.services.nodes.reachability import ReachabilityTracker
from nodesmith.services.nodes.registration import Registration
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from nodesmith.workers.outcome_bridge import OutcomeBridge
from tests.fakes.node_link import SimulatedLink, SimulatedPresence
from tests.services.conftest import TOKEN, Join, now
from tests.services.test_registration import a_node
from tests.store.transitions import a_request, transition

COMMAND = Command(op_id="op", backend="echo")
CANCEL = CancelCommand(op_id="op")


class AnsweringLink(SimulatedLink):
    """Answers every request, or none."""

    is_away = False

    def _there(self) -> None:
        if self.is_away:
            raise NodeAway

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
        self._there()
        return CommandReply()

    async def order(self, node_id: str, kind: Kind, command: SignedCommand, *, within: float) -> CommandReply:
        self._there()
        return CommandReply()

    async def cancel(self, node_id: str, command: CancelCommand, *, within: float) -> CancelReply:
        self._there()
        return CancelReply(op_id=command.op_id)

    async def ask(self, node_id: str, op_id: str, *, within: float) -> OpReply:
        self._there()
        return OpReply(op_id=op_id)

    async def list_backends(self, node_id: str, *, within: float) -> BackendList:
        self._there()
        return BackendList()


class RecordedWakes:
    def __init__(self) -> None:
        self.woken: list[str] = []
        self.open: list[Run] = []
        self.is_away = False

    async def node_back(self, workflow_id: str, _node_id: str) -> None:
        if self.is_away:
            raise ServiceUnavailable("Temporal does not answer.")
        self.woken.append(workflow_id)

    async def open_runs(self) -> Sequence[Run]:
        return self.open


@pytest.fixture
def wakes() -> RecordedWakes:
    return RecordedWakes()


@pytest.fixture
def link() -> SimulatedLink:
    return SimulatedLink()


@pytest.fixture
def inventory(database: Database) -> InventoryTable:
    return InventoryTable(database)


@pytest.fixture
async def liveness(
    nodes: Nodes,
    operations: OperationTable,
    wakes: RecordedWakes,
    link: SimulatedLink,
    life: NodeLifecycle,
    presence: SimulatedPresence,
    inventory: InventoryTable,
) -> AsyncIterator[Liveness]:
    liveness = Liveness(nodes, operations, wakes, link, DuplicateIdentities(life, presence), inventory, now)
    yield liveness
    await settled(liveness)


async def settled(liveness: Liveness) -> None:
    """Wait until the background checks are done."""
    await asyncio.gather(*liveness._checks)


async def hear(liveness: Liveness, *beats: Heartbeat) -> None:
    await liveness.process(beats)
    await settled(liveness)


async def waiting(operations: OperationTable, node: Node, number: int, reason: Reason) -> list[str]:
    rows = [
        transition(a_request(node_id=node.id, backend=f"b{each}"), State.WAITING, reason=reason)
        for each in range(number)
    ]
    await operations.record(*rows)
    return [row.workflow_id for row in rows]


# waking -------------------------------------------------------------------------------------------------------


async def test_heartbeat_wakes_only_operations_that_wait_for_its_node(
    liveness: Liveness, join: Join, operations: OperationTable, wakes: RecordedWakes
) -> None:
    """There is no back-off to clear: the heartbeat itself ends the wait."""
    node, other = await join(), await join()
    waits = await waiting(operations, node, 2, Reason.NODE_AWAY)
    await waiting(operations, other, 1, Reason.NODE_AWAY)
    await operations.record(
        transition(a_request(node_id=node.id, backend="backs-off"), State.WAITING, reason=Reason.BACK_OFF)
    )
    await hear(liveness, Heartbeat(node_id=node.id))
    assert sorted(wakes.woken) == sorted(waits)


async def test_wakes_are_throttled_and_kept_while_temporal_is_unavailable(
    liveness: Liveness, join: Join, operations: OperationTable, wakes: RecordedWakes
) -> None:
    node = await join()
    waits = await waiting(operations, node, WAKES_PER_SECOND + 5, Reason.NODE_AWAY)
    wakes.is_away = True
    await hear(liveness, Heartbeat(node_id=node.id))
    wakes.is_away = False
    await hear(liveness)
    assert len(wakes.woken) == WAKES_PER_SECOND
    await hear(liveness)
    assert sorted(wakes.woken) == sorted(waits)


# orphans ------------------------------------------------------------------------------------------------------


async def test_operation_that_has_ended_here_is_stopped_on_its_node(
    liveness: Liveness, join: Join, operations: OperationTable, link: SimulatedLink
) -> None:
    node = await join()
    ended, open_here = a_request(node_id=node.id), a_request(node_id=node.id, backend="other")
    await operations.record(transition(ended, State.CANCELLED))
    await operations.record(transition(open_here, State.RUNNING))
    link.cancel_reply = CancelReply(op_id=ended.op_id, answer=CancelAnswer.STOPPED)
    await hear(liveness, Heartbeat(node_id=node.id, open_ops=[ended.op_id, open_here.op_id]))
    assert [command.op_id for command in link.cancels] == [ended.op_id]
    link.cancel_reply = NodeAway()
    await hear(liveness, Heartbeat(node_id=node.id, open_ops=[ended.op_id]))
    await hear(liveness, Heartbeat(node_id=node.id, open_ops=[ended.op_id]))
    assert len(link.cancels) == 3


async def test_operation_that_another_node_claims_too_is_stopped_on_both(
    liveness: Liveness, join: Join, operations: OperationTable, link: SimulatedLink
) -> None:
    """A hostile node cannot keep the orphan of another node running."""
    victim, hostile = await join(), await join()
    ended = a_request(node_id=victim.id)
    await operations.record(transition(ended, State.CANCELLED))
    link.cancel_reply = CancelReply(op_id=ended.op_id, answer=CancelAnswer.STOPPED)
    await hear(liveness, *(Heartbeat(node_id=each.id, open_ops=[ended.op_id]) for each in (victim, hostile)))
    assert sorted(link.cancelled_on) == sorted([victim.id, hostile.id])


async def test_orphan_that_finished_before_its_stop_marks_the_inventory_stale(
    liveness: Liveness, join: Join, operations: OperationTable, link: SimulatedLink, inventory: InventoryTable
) -> None:
    """The list was read between the forced end of the operation and the change of the disk."""
    node = await join()
    forced = a_request(node_id=node.id)
    await operations.record(transition(forced, State.CANCELLED, reason=Reason.FORCED))
    await inventory.replace(node.id, [], asked_at=now(), boot_id="")
    assert await inventory.uncertain([node.id]) == set()
    link.cancel_reply = CancelReply(op_id=forced.op_id, answer=CancelAnswer.STOPPED)
    await hear(liveness, Heartbeat(node_id=node.id, open_ops=[forced.op_id]))
    assert await inventory.uncertain([node.id]) == set()
    link.cancel_reply = CancelReply(op_id=forced.op_id, answer=CancelAnswer.TOO_LATE)
    await hear(liveness, Heartbeat(node_id=node.id, open_ops=[forced.op_id]))
    assert await inventory.uncertain([node.id]) == {node.id}
    await inventory.replace(node.id, [], asked_at=now(), boot_id="")
    assert await inventory.uncertain([node.id]) == set()


@pytest.mark.parametrize(
    ("reported", "said", "is_doubted"),
    [
        (State.FAILED, Result.SUCCEEDED, True),
        (State.SUCCEEDED, Result.SUCCEEDED, False),
        (State.FAILED, Result.FAILED, False),
    ],
)
async def test_late_success_after_an_unsuccessful_end_marks_the_inventory_stale(
    join: Join,
    operations: OperationTable,
    runs: TemporalRuns,
    inventory: InventoryTable,
    reported: State,
    said: Result,
    is_doubted: bool,
) -> None:
    """A run was terminated while its node was unreachable; the node continued and reports after it reconnects."""
    node = await join()
    request = a_request(node_id=node.id)
    await operations.record(transition(request, reported))
    await inventory.replace(node.id, [], asked_at=now(), boot_id="")
    bridge = OutcomeBridge(operations, runs, inventory)
    await bridge._report(Outcome(op_id=request.op_id, node_id=node.id, result=said))
    assert bool(await inventory.uncertain([node.id])) is is_doubted


async def test_operation_without_row_and_run_is_stopped_on_its_node(
    liveness: Liveness, join: Join, wakes: RecordedWakes, link: SimulatedLink
) -> None:
    """Protocol 3: PostgreSQL and Temporal were both restored from backups. An open run writes its row again."""
    node = await join()
    wakes.open = [Run(workflow_id="w", run_id="r", is_open=True, op_id="has-a-run")]
    link.cancel_reply = CancelReply(op_id="forgotten", answer=CancelAnswer.STOPPED)
    await hear(liveness, Heartbeat(node_id=node.id, open_ops=["has-a-run", "forgotten"]))
    assert [command.op_id for command in link.cancels] == ["forgotten"]


# identity -----------------------------------------------------------------------------------------------------


async def test_removed_node_that_still_sends_heartbeats_is_stopped(
    liveness: Liveness, join: Join, lifecycle: Lifecycle, presence: SimulatedPresence
) -> None:
    """H8."""
    node = await join()
    await lifecycle.remove(node.id, actor="ada")
    presence.stop_orders.clear()
    await hear(liveness, Heartbeat(node_id=node.id, boot_id="b1"), Heartbeat(node_id="of-another-registry"))
    assert dict(presence.stop_orders) == {
        node.id: StopOrder(why=StopWhy.REMOVED, boot_id="b1"),
        "of-another-registry": StopOrder(why=StopWhy.NOT_KNOWN),
    }


async def test_registered_process_stays_the_node_when_another_sends_heartbeats(
    liveness: Liveness, registration: Registration, presence: SimulatedPresence, nodes: Nodes
) -> None:
    request = a_node(boot_id="first")
    node_id = (await registration.register(request, bearer=TOKEN)).id
    await registration.approve(node_id)
    presence.there = {(node_id, "first"), (node_id, "copy")}
    for boot_id in ("first", "copy", "first", "copy"):
        await hear(liveness, Heartbeat(node_id=node_id, boot_id=boot_id))
    stop = StopOrder(why=StopWhy.IDENTITY_IN_USE, boot_id="copy")
    assert presence.stop_orders == [(node_id, stop), (node_id, stop)]
    seen = await nodes.find(node_id)
    assert seen is not None
    assert (seen.boot_id, seen.rival_seen_at is not None) == ("first", True)


async def test_unregistered_process_is_adopted_once_the_old_one_is_gone(
    liveness: Liveness, registration: Registration, presence: SimulatedPresence, nodes: Nodes
) -> None:
    """The API may be down while a node restarts."""
    request = a_node(boot_id="first")
    node_id = (await registration.register(request, bearer=TOKEN)).id
    await registration.approve(node_id)
    for _ in range(2):
        await hear(liveness, Heartbeat(node_id=node_id, boot_id="second"))
    seen = await nodes.find(node_id)
    assert seen is not None
    assert (seen.boot_id, seen.status, presence.stop_orders) == ("second", NodeStatus.HEALTHY, [])


async def test_process_with_a_reset_credential_is_stopped_at_its_next_heartbeat(
    liveness: Liveness, join: Join, lifecycle: Lifecycle, presence: SimulatedPresence, nodes: Nodes
) -> None:
    node = await join()
    await lifecycle.reset_credential(node.id)
    presence.stop_orders.clear()
    await hear(liveness, Heartbeat(node_id=node.id, boot_id="old"))
    assert presence.stop_orders == [(node.id, StopOrder(why=StopWhy.CREDENTIAL_RESET, boot_id="old"))]
    seen = await nodes.find(node.id)
    assert seen is not None
    assert seen.boot_id == ""


# reachability -------------------------------------------------------------------------------------------------


async def test_only_commands_and_lists_change_reachability(join: Join, nodes: Nodes) -> None:
    """S47. R27, R28: a missing subscriber marks the node and deletes nothing; queries and cancels change nothing."""
    node = await join()
    far_end = AnsweringLink()
    tracker = ReachabilityTracker(far_end, nodes, now)

    async def unreachable() -> bool:
        seen = await nodes.find(node.id)
        assert seen is not None
        return seen.unreachable_since is not None

    await nodes.touch_listening(now())
    far_end.is_away = True
    for asking in (tracker.ask(node.id, "op", within=1), tracker.cancel(node.id, CANCEL, within=1)):
        with pytest.raises(NodeAway):
            await asking
    assert not await unreachable()
    for command in (tracker.command(node.id, COMMAND, within=1), tracker.list_backends(node.id, within=1)):
        with pytest.raises(NodeAway):
            await command
        assert await unreachable()
        far_end.is_away = False
        await tracker.command(node.id, COMMAND, within=1)
        await tracker.close()
        assert not await unreachable()
        far_end.is_away = True

"""Liveness: heartbeats refresh, wake and stop; whoever is not the node that registered is told."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from contracts.messages import (
    BackendList,
    CancelAnswer,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Heartbeat,
    OpReply,
    StopOrder,
    StopWhy,
)
from contracts.node_http import NodeView
from contracts.temporal import Run
from domain.errors import NodeAway, ServiceUnavailable
from domain.node import NodeStatus
from domain.operation import Reason, State
from services.identity import Impostors
from services.lifecycle import Lifecycle
from services.liveness import WAKES_A_SECOND, Liveness
from services.registration import Registration
from services.witness import Witness
from store.life import NodeLife
from store.nodes import Nodes
from store.operations import OperationTable
from tests.services.conftest import TOKEN, Join, now
from tests.services.links import PlayedLink, PlayedPresence
from tests.services.test_registration import a_node
from tests.store.transitions import a_request, transition

COMMAND = Command(op_id="op", backend="echo")
CANCEL = CancelCommand(op_id="op")


class AnsweringLink(PlayedLink):
    """Answers everything, or nothing at all."""

    is_away = False

    def _there(self) -> None:
        if self.is_away:
            raise NodeAway

    async def command(self, node_id: str, command: Command, *, within: float) -> CommandReply:
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
def link() -> PlayedLink:
    return PlayedLink()


@pytest.fixture
async def liveness(
    nodes: Nodes,
    operations: OperationTable,
    wakes: RecordedWakes,
    link: PlayedLink,
    life: NodeLife,
    presence: PlayedPresence,
) -> AsyncIterator[Liveness]:
    liveness = Liveness(nodes, operations, wakes, link, Impostors(life, presence), now)
    yield liveness
    await settled(liveness)


async def settled(liveness: Liveness) -> None:
    """Until what goes on beside the heartbeats is done."""
    await asyncio.gather(*liveness._looking)


async def hear(liveness: Liveness, *beats: Heartbeat) -> None:
    await liveness.heard(beats)
    await settled(liveness)


async def waiting(operations: OperationTable, node: NodeView, number: int, reason: Reason) -> list[str]:
    rows = [
        transition(a_request(node_id=node.id, backend=f"b{each}"), State.WAITING, reason=reason)
        for each in range(number)
    ]
    await operations.record(*rows)
    return [row.workflow_id for row in rows]


# waking -------------------------------------------------------------------------------------------------------


async def test_a_node_that_is_heard_wakes_what_waits_for_it_and_nothing_else(
    liveness: Liveness, join: Join, operations: OperationTable, wakes: RecordedWakes
) -> None:
    """There is no cool-down to clear: the node's own voice ends the wait."""
    node, other = await join(), await join()
    waits = await waiting(operations, node, 2, Reason.NODE_AWAY)
    await waiting(operations, other, 1, Reason.NODE_AWAY)
    await operations.record(
        transition(a_request(node_id=node.id, backend="backs-off"), State.WAITING, reason=Reason.BACK_OFF)
    )
    await hear(liveness, Heartbeat(node_id=node.id))
    assert sorted(wakes.woken) == sorted(waits)


async def test_many_are_woken_in_turn_and_none_is_lost_while_temporal_is_away(
    liveness: Liveness, join: Join, operations: OperationTable, wakes: RecordedWakes
) -> None:
    node = await join()
    waits = await waiting(operations, node, WAKES_A_SECOND + 5, Reason.NODE_AWAY)
    wakes.is_away = True
    await hear(liveness, Heartbeat(node_id=node.id))
    wakes.is_away = False
    await hear(liveness)
    assert len(wakes.woken) == WAKES_A_SECOND
    await hear(liveness)
    assert sorted(wakes.woken) == sorted(waits)


# orphans ------------------------------------------------------------------------------------------------------


async def test_work_on_a_node_that_has_ended_here_is_stopped_there(
    liveness: Liveness, join: Join, operations: OperationTable, link: PlayedLink
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


async def test_work_on_a_node_that_has_neither_row_nor_run_is_stopped_there(
    liveness: Liveness, join: Join, wakes: RecordedWakes, link: PlayedLink
) -> None:
    """Protocol 3: PostgreSQL and Temporal were both restored to an older moment. An open run writes its row anew."""
    node = await join()
    wakes.open = [Run(workflow_id="w", run_id="r", is_open=True, op_id="has-a-run")]
    link.cancel_reply = CancelReply(op_id="forgotten", answer=CancelAnswer.STOPPED)
    await hear(liveness, Heartbeat(node_id=node.id, open_ops=["has-a-run", "forgotten"]))
    assert [command.op_id for command in link.cancels] == ["forgotten"]


# who is who ---------------------------------------------------------------------------------------------------


async def test_a_removed_node_that_still_heartbeats_is_told_so(
    liveness: Liveness, join: Join, lifecycle: Lifecycle, presence: PlayedPresence
) -> None:
    """H8."""
    node = await join()
    await lifecycle.remove(node.id, actor="ada")
    presence.told.clear()
    await hear(liveness, Heartbeat(node_id=node.id, boot_id="b1"), Heartbeat(node_id="of-another-registry"))
    assert dict(presence.told) == {
        node.id: StopOrder(why=StopWhy.REMOVED, boot_id="b1"),
        "of-another-registry": StopOrder(why=StopWhy.NOT_KNOWN),
    }


async def test_of_two_processes_that_heartbeat_in_turn_the_one_that_registered_stays(
    liveness: Liveness, registration: Registration, presence: PlayedPresence, nodes: Nodes
) -> None:
    request = a_node(boot_id="first")
    node_id = (await registration.register(request, bearer=TOKEN)).id
    await registration.approve(node_id)
    presence.there = {(node_id, "first"), (node_id, "copy")}
    for boot_id in ("first", "copy", "first", "copy"):
        await hear(liveness, Heartbeat(node_id=node_id, boot_id=boot_id))
    stop = StopOrder(why=StopWhy.IDENTITY_IN_USE, boot_id="copy")
    assert presence.told == [(node_id, stop), (node_id, stop)]
    seen = await nodes.find(node_id)
    assert seen is not None
    assert (seen.boot_id, seen.rival_seen_at is not None) == ("first", True)


async def test_a_process_that_could_not_register_is_the_node_once_the_old_one_is_gone(
    liveness: Liveness, registration: Registration, presence: PlayedPresence, nodes: Nodes
) -> None:
    """The API may be down while a node restarts."""
    request = a_node(boot_id="first")
    node_id = (await registration.register(request, bearer=TOKEN)).id
    await registration.approve(node_id)
    for _ in range(2):
        await hear(liveness, Heartbeat(node_id=node_id, boot_id="second"))
    seen = await nodes.find(node_id)
    assert seen is not None
    assert (seen.boot_id, seen.status, presence.told) == ("second", NodeStatus.HEALTHY, [])


async def test_the_process_of_a_credential_that_was_reset_is_told_when_it_is_heard_again(
    liveness: Liveness, join: Join, lifecycle: Lifecycle, presence: PlayedPresence, nodes: Nodes
) -> None:
    node = await join()
    await lifecycle.reset_credential(node.id)
    presence.told.clear()
    await hear(liveness, Heartbeat(node_id=node.id, boot_id="old"))
    assert presence.told == [(node.id, StopOrder(why=StopWhy.CREDENTIAL_RESET, boot_id="old"))]
    seen = await nodes.find(node.id)
    assert seen is not None
    assert seen.boot_id == ""


# evidence -----------------------------------------------------------------------------------------------------


async def test_only_commands_and_lists_are_evidence_and_an_answer_clears_it(join: Join, nodes: Nodes) -> None:
    """S47. R27, R28: nobody at the node marks it, nothing is deleted for it; a question or a cancel proves nothing."""
    node = await join()
    far_end = AnsweringLink()
    witness = Witness(far_end, nodes, now)

    async def unreachable() -> bool:
        seen = await nodes.find(node.id)
        assert seen is not None
        return seen.unreachable_since is not None

    await nodes.touch_listening(now())
    far_end.is_away = True
    for asking in (witness.ask(node.id, "op", within=1), witness.cancel(node.id, CANCEL, within=1)):
        with pytest.raises(NodeAway):
            await asking
    assert not await unreachable()
    for command in (witness.command(node.id, COMMAND, within=1), witness.list_backends(node.id, within=1)):
        with pytest.raises(NodeAway):
            await command
        assert await unreachable()
        far_end.is_away = False
        await witness.command(node.id, COMMAND, within=1)
        await witness.close()
        assert not await unreachable()
        far_end.is_away = True

"""Commands and answers over a real server, both ends."""

import asyncio

import pytest
import structlog.testing
from nats.aio.msg import Msg

from bus.commands import NodeClient, serve, serve_localai
from bus.reports import ReportHub
from contracts import subjects
from contracts.messages import (
    Answer,
    BackendList,
    CancelAnswer,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Installed,
    OpQuestion,
    OpReply,
    OpStanding,
    StopOrder,
)
from domain.errors import NoAnswer, NodeAway
from domain.operation import Kind, Reason
from tests.bus.conftest import StartNode


class ScriptedDesk:
    """Answers at once, except where a test holds the gate."""

    def __init__(self) -> None:
        self.heard: list[Command] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.stopped = asyncio.Event()
        self.breaks = False
        self.slow: frozenset[Kind] = frozenset(Kind)
        """kinds that wait for the gate"""

    async def command(self, command: Command) -> CommandReply | None:
        if self.breaks:
            raise ValueError("a fault of the desk")
        self.heard.append(command)
        self.arrived.set()
        if command.kind in self.slow:
            await self.gate.wait()
        return CommandReply(op_id=command.op_id, answer=Answer.ACCEPTED) if command.op_id else None

    async def cancel(self, command: CancelCommand) -> CancelReply:
        return CancelReply(op_id=command.op_id, answer=CancelAnswer.STOPPED)

    async def ask(self, question: OpQuestion) -> OpReply:
        return OpReply(op_id=question.op_id, standing=OpStanding.RUNNING)

    async def list_backends(self) -> BackendList:
        return BackendList(backends=[Installed(name="echo", version="1")])

    async def stop_backend(self, command: Command) -> None:
        self.heard.append(command)
        self.stopped.set()

    async def stop_node(self, order: StopOrder) -> None:
        self.stopped.set()


@pytest.fixture
def client(control):
    return NodeClient(control, ReportHub(control))


@pytest.fixture
async def desk(start_node: StartNode, node_id):
    desk = ScriptedDesk()
    await serve(await start_node(node_id), node_id, desk)
    return desk


@pytest.mark.parametrize(
    ("kind", "arrives_as"),
    [
        (Kind.INSTALL, Kind.INSTALL),
        (Kind.UPGRADE, Kind.UPGRADE),
        (Kind.REMOVE, Kind.REMOVE),
        (Kind.ROLLBACK, Kind.ROLLBACK),
        (Kind.UNKNOWN, Kind.INSTALL),
    ],
)
async def test_a_command_arrives_as_what_it_means(client, desk, node_id, kind, arrives_as):
    reply = await client.command(node_id, Command(op_id="op", kind=kind, decision=7), within=10)
    assert reply.answer is Answer.ACCEPTED
    assert [(each.kind, each.decision) for each in desk.heard] == [(arrives_as, 7)]


async def test_each_question_has_its_answer(client, desk, node_id):
    assert (await client.cancel(node_id, CancelCommand(op_id="op"), within=10)).answer is CancelAnswer.STOPPED
    assert (await client.ask(node_id, "op", within=10)).standing is OpStanding.RUNNING
    assert (await client.list_backends(node_id, within=10)).backends[0].name == "echo"


async def test_a_slow_command_blocks_no_cancel(client, desk, node_id):
    """G2."""
    desk.gate.clear()
    slow = asyncio.create_task(client.command(node_id, Command(op_id="slow"), within=30))
    assert (await client.cancel(node_id, CancelCommand(op_id="op"), within=10)).answer is CancelAnswer.STOPPED
    second = asyncio.create_task(client.command(node_id, Command(op_id="second"), within=30))
    assert (await client.ask(node_id, "op", within=10)).standing is OpStanding.RUNNING
    assert not slow.done()
    desk.gate.set()
    assert (await slow).op_id == "slow"
    assert (await second).op_id == "second"


async def test_a_slow_upgrade_blocks_no_install(client, desk, node_id):
    """S36, superseded: an upgrade has a subject of its own, and an install is answered while it lasts."""
    assert subjects.upgrade(node_id) != subjects.install(node_id)
    desk.gate.clear()
    desk.slow = frozenset({Kind.UPGRADE})
    upgrade = asyncio.create_task(client.command(node_id, Command(op_id="slow", kind=Kind.UPGRADE), within=30))
    await asyncio.wait_for(desk.arrived.wait(), 10)
    assert (await client.command(node_id, Command(op_id="quick"), within=10)).answer is Answer.ACCEPTED
    assert not upgrade.done()
    desk.gate.set()
    assert (await upgrade).op_id == "slow"


async def test_no_node_is_away_and_a_silent_node_is_no_answer(client, desk, node_id):
    with pytest.raises(NodeAway):
        await client.ask("nobody", "op", within=10)
    with pytest.raises(NoAnswer):
        await client.command(node_id, Command(), within=0.2)


@pytest.mark.parametrize("payload", [b"not json", b"[1]", b"\xff\xfe"])
async def test_an_unreadable_command_is_refused_with_one_line(control, desk, node_id, payload):
    with structlog.testing.capture_logs() as lines:
        answer = await control.request(subjects.install(node_id), payload, within=10)
    reply = CommandReply.decode(answer)
    assert (reply.answer, reply.reason) == (Answer.REFUSED, Reason.REFUSED_BY_NODE)
    assert [line["event"] for line in lines] == ["nats.unreadable"]
    assert desk.heard == []


async def test_a_desk_that_breaks_gives_no_answer_and_serves_on(client, desk, node_id):
    """S61. Not a refusal: that would be final, and the fault is ours."""
    desk.breaks = True
    with structlog.testing.capture_logs() as lines, pytest.raises(NoAnswer):
        await client.command(node_id, Command(op_id="op"), within=0.2)
    assert [line["event"] for line in lines] == ["nats.not_answered"]
    desk.breaks = False
    assert (await client.command(node_id, Command(op_id="op"), within=10)).answer is Answer.ACCEPTED


async def test_an_unreadable_answer_is_no_answer(client, start_node: StartNode, node_id):
    bus = await start_node(node_id)

    async def answer(message: Msg) -> None:
        await bus.publish(message.reply, b"hello")

    await bus.subscribe(subjects.operation(node_id), answer)
    with pytest.raises(NoAnswer):
        await client.ask(node_id, "op", within=10)


@pytest.mark.parametrize("payload", [b"", b"null", b'{"backend": "echo"}'])
async def test_stop_comes_with_or_without_a_name(control, desk, node_id, payload):
    """S43."""
    await control.publish(subjects.stop_backend(node_id), payload)
    await asyncio.wait_for(desk.stopped.wait(), 10)


async def test_a_localai_worker_hears_no_cancel_and_no_question(client, start_node: StartNode, node_id):
    await serve_localai(await start_node(node_id, protocol=1), node_id, ScriptedDesk())
    assert (await client.command(node_id, Command(op_id="op"), within=10)).op_id == "op"
    with pytest.raises(NodeAway):
        await client.cancel(node_id, CancelCommand(op_id="op"), within=10)
    with pytest.raises(NodeAway):
        await client.ask(node_id, "op", within=10)

"""Commands and replies between control plane and node over a real NATS server."""

import asyncio

import pytest
import structlog.testing
from nats.aio.msg import Msg

from nodesmith.bus.commands import NodeClient, serve, serve_localai
from nodesmith.bus.reports import ReportHub
from nodesmith.bus.signed_messages import unverified
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import (
    Answer,
    BackendList,
    CancelAnswer,
    CancelCommand,
    CancelReply,
    Command,
    CommandReply,
    Installed,
    NodeOperationStatus,
    OpQuestion,
    OpReply,
)
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.contracts.nats.presence import StopOrder
from nodesmith.domain.errors import NoAnswer, NodeAway
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.bus.conftest import StartNode
from tests.orders import OrderBook, unwrapped


class ScriptedHandlers:
    """Replies at once, unless a test closes the gate."""

    def __init__(self) -> None:
        self.received: list[Command] = []
        self.signed: list[SignedCommand] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.stopped = asyncio.Event()
        self.breaks = False
        self.is_silent = False
        self.slow: frozenset[Kind] = frozenset(Kind)
        """kinds that wait for the gate"""

    async def order(self, command: SignedCommand) -> CommandReply | None:
        self.signed.append(command)
        return await self.command(unwrapped(command))

    async def command(self, command: Command) -> CommandReply | None:
        if self.breaks:
            raise ValueError("a bug in the handlers")
        self.received.append(command)
        self.arrived.set()
        if command.kind in self.slow:
            await self.gate.wait()
        return None if self.is_silent else CommandReply(op_id=command.op_id, answer=Answer.ACCEPTED)

    async def cancel(self, command: CancelCommand) -> CancelReply:
        return CancelReply(op_id=command.op_id, answer=CancelAnswer.STOPPED)

    async def ask(self, question: OpQuestion) -> OpReply:
        return OpReply(op_id=question.op_id, standing=NodeOperationStatus.RUNNING)

    async def list_backends(self) -> BackendList:
        return BackendList(backends=[Installed(name="echo", version="1")])

    async def stop_backend(self, command: Command) -> None:
        self.received.append(command)
        self.stopped.set()

    async def stop_node(self, order: StopOrder) -> None:
        self.stopped.set()


@pytest.fixture
def client(control):
    return NodeClient(control, ReportHub(control))


@pytest.fixture
async def handlers(start_node: StartNode, node_id):
    handlers = ScriptedHandlers()
    await serve(await start_node(node_id), node_id, handlers)
    return handlers


async def ordered(client: NodeClient, node_id: str, command: Command, *, within: float) -> CommandReply:
    return await client.order(node_id, command.kind, OrderBook().signed(node_id, command), within=within)


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE, Kind.REMOVE, Kind.ROLLBACK])
async def test_order_arrives_as_it_was_signed(client, handlers, node_id, kind):
    command = Command(op_id="op", kind=kind, family="echo", decision=7)
    signed = OrderBook().signed(node_id, command)
    reply = await client.order(node_id, kind, signed, within=10)
    assert reply.answer is Answer.ACCEPTED
    assert handlers.signed == [signed]
    assert [(each.kind, each.decision) for each in handlers.received] == [(kind, 7)]


@pytest.mark.parametrize(
    ("kind", "arrives_as"),
    [
        (Kind.INSTALL, Kind.INSTALL),
        (Kind.UPGRADE, Kind.UPGRADE),
        (Kind.REMOVE, Kind.REMOVE),
        (Kind.UNKNOWN, Kind.INSTALL),
    ],
)
async def test_localai_command_arrives_as_what_it_means(client, start_node: StartNode, node_id, kind, arrives_as):
    handlers = ScriptedHandlers()
    await serve_localai(await start_node(node_id, protocol=1), node_id, handlers)
    reply = await client.command(node_id, Command(op_id="op", kind=kind, decision=7), within=10)
    assert reply.answer is Answer.ACCEPTED
    assert [(each.kind, each.decision) for each in handlers.received] == [(arrives_as, 7)]


async def test_unsigned_command_is_refused_by_our_own_agent(client, handlers, node_id):
    reply = await client.command(node_id, Command(op_id="op", kind=Kind.INSTALL, family="echo"), within=10)
    assert (reply.answer, reply.reason) == (Answer.REFUSED, Reason.REFUSED_BY_NODE)
    assert handlers.received == []


async def test_each_question_has_its_answer(client, handlers, node_id):
    assert (await client.cancel(node_id, CancelCommand(op_id="op"), within=10)).answer is CancelAnswer.STOPPED
    assert (await client.ask(node_id, "op", within=10)).standing is NodeOperationStatus.RUNNING
    assert (await client.list_backends(node_id, within=10)).backends[0].name == "echo"


async def test_a_slow_command_blocks_no_cancel(client, handlers, node_id):
    """G2."""
    handlers.gate.clear()
    slow = asyncio.create_task(ordered(client, node_id, Command(op_id="slow", family="a"), within=30))
    assert (await client.cancel(node_id, CancelCommand(op_id="op"), within=10)).answer is CancelAnswer.STOPPED
    second = asyncio.create_task(ordered(client, node_id, Command(op_id="second", family="b"), within=30))
    assert (await client.ask(node_id, "op", within=10)).standing is NodeOperationStatus.RUNNING
    assert not slow.done()
    handlers.gate.set()
    assert (await slow).op_id == "slow"
    assert (await second).op_id == "second"


async def test_a_slow_upgrade_blocks_no_install(client, handlers, node_id):
    """S36, superseded: an upgrade has a subject of its own, and an install is answered while it lasts."""
    assert subjects.upgrade(node_id) != subjects.install(node_id)
    handlers.gate.clear()
    handlers.slow = frozenset({Kind.UPGRADE})
    upgrade = asyncio.create_task(
        ordered(client, node_id, Command(op_id="slow", kind=Kind.UPGRADE, family="a"), within=30)
    )
    await asyncio.wait_for(handlers.arrived.wait(), 10)
    assert (await ordered(client, node_id, Command(op_id="quick", family="b"), within=10)).answer is Answer.ACCEPTED
    assert not upgrade.done()
    handlers.gate.set()
    assert (await upgrade).op_id == "slow"


async def test_no_node_is_away_and_a_silent_node_is_no_answer(client, handlers, node_id):
    with pytest.raises(NodeAway):
        await client.ask("nobody", "op", within=10)
    handlers.is_silent = True
    with pytest.raises(NoAnswer):
        await ordered(client, node_id, Command(op_id="op", family="echo"), within=0.2)


@pytest.mark.parametrize("payload", [b"not json", b"[1]", b"\xff\xfe"])
async def test_an_unreadable_command_is_refused_with_one_line(control, handlers, node_id, payload):
    with structlog.testing.capture_logs() as lines:
        answer = await control.request(subjects.install(node_id), payload, within=10)
    reply = CommandReply.decode(unverified(answer.data))
    assert (reply.answer, reply.reason) == (Answer.REFUSED, Reason.REFUSED_BY_NODE)
    assert [line["event"] for line in lines] == ["nats.unreadable"]
    assert handlers.received == []


async def test_failing_handler_sends_no_reply_and_keeps_serving(client, handlers, node_id):
    """S61. Not a refusal: that would be final, and the fault is ours."""
    handlers.breaks = True
    with structlog.testing.capture_logs() as lines, pytest.raises(NoAnswer):
        await ordered(client, node_id, Command(op_id="op", family="echo"), within=0.2)
    assert [line["event"] for line in lines] == ["nats.not_answered"]
    handlers.breaks = False
    reply = await ordered(client, node_id, Command(op_id="op", family="echo"), within=10)
    assert reply.answer is Answer.ACCEPTED


async def test_an_unreadable_answer_is_no_answer(client, start_node: StartNode, node_id):
    bus = await start_node(node_id)

    async def answer(message: Msg) -> None:
        await bus.publish(message.reply, b"hello")

    await bus.subscribe(subjects.operation(node_id), answer)
    with pytest.raises(NoAnswer):
        await client.ask(node_id, "op", within=10)


@pytest.mark.parametrize("payload", [b"", b"null", b'{"backend": "echo"}'])
async def test_stop_comes_with_or_without_a_name(control, handlers, node_id, payload):
    """S43."""
    await control.publish(subjects.stop_backend(node_id), payload)
    await asyncio.wait_for(handlers.stopped.wait(), 10)


async def test_localai_worker_serves_neither_cancel_nor_op(client, start_node: StartNode, node_id):
    await serve_localai(await start_node(node_id, protocol=1), node_id, ScriptedHandlers())
    assert (await client.command(node_id, Command(op_id="op"), within=10)).op_id == "op"
    with pytest.raises(NodeAway):
        await client.cancel(node_id, CancelCommand(op_id="op"), within=10)
    with pytest.raises(NodeAway):
        await client.ask(node_id, "op", within=10)

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
    CancelAnswer,
    CancelCommand,
    Command,
    CommandReply,
    NodeOperationStatus,
)
from nodesmith.domain.errors import NoAnswer, NodeAway
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.bus.conftest import StartNode
from tests.fakes.node import SimulatedNode
from tests.orders import OrderBook


@pytest.fixture
def client(control):
    return NodeClient(control, ReportHub(control))


@pytest.fixture
async def node(start_node: StartNode, node_id):
    node = SimulatedNode()
    await serve(await start_node(node_id), node_id, node)
    return node


async def ordered(client: NodeClient, node_id: str, command: Command, *, within: float) -> CommandReply:
    return await client.order(node_id, command.kind, OrderBook().signed(node_id, command), within=within)


@pytest.mark.parametrize("kind", [Kind.INSTALL, Kind.UPGRADE, Kind.REMOVE, Kind.ROLLBACK])
async def test_order_arrives_as_it_was_signed(client, node, node_id, kind):
    command = Command(op_id="op", kind=kind, family="echo", decision=7)
    signed = OrderBook().signed(node_id, command)
    reply = await client.order(node_id, kind, signed, within=10)
    assert reply.answer is Answer.ACCEPTED
    assert node.signed == [signed]
    assert [(each.kind, each.decision) for each in node.received] == [(kind, 7)]


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
    node = SimulatedNode()
    await serve_localai(await start_node(node_id, protocol=1), node_id, node)
    reply = await client.command(node_id, Command(op_id="op", kind=kind, decision=7), within=10)
    assert reply.answer is Answer.ACCEPTED
    assert [(each.kind, each.decision) for each in node.received] == [(arrives_as, 7)]


async def test_unsigned_command_is_refused_by_our_own_agent(client, node, node_id):
    reply = await client.command(node_id, Command(op_id="op", kind=Kind.INSTALL, family="echo"), within=10)
    assert (reply.answer, reply.reason) == (Answer.REFUSED, Reason.REFUSED_BY_NODE)
    assert node.received == []


async def test_each_question_has_its_answer(client, node, node_id):
    assert (await client.cancel(node_id, CancelCommand(op_id="op"), within=10)).answer is CancelAnswer.STOPPED
    assert (await client.ask(node_id, "op", within=10)).standing is NodeOperationStatus.RUNNING
    assert (await client.list_backends(node_id, within=10)).backends[0].name == "echo"


async def test_a_slow_command_blocks_no_cancel(client, node, node_id):
    """G2."""
    node.may_reply.clear()
    slow = asyncio.create_task(ordered(client, node_id, Command(op_id="slow", family="a"), within=30))
    assert (await client.cancel(node_id, CancelCommand(op_id="op"), within=10)).answer is CancelAnswer.STOPPED
    second = asyncio.create_task(ordered(client, node_id, Command(op_id="second", family="b"), within=30))
    assert (await client.ask(node_id, "op", within=10)).standing is NodeOperationStatus.RUNNING
    assert not slow.done()
    node.may_reply.set()
    assert (await slow).op_id == "slow"
    assert (await second).op_id == "second"


async def test_a_slow_upgrade_blocks_no_install(client, node, node_id):
    """S36, superseded: an upgrade has a subject of its own, and an install is answered while it lasts."""
    assert subjects.upgrade(node_id) != subjects.install(node_id)
    node.may_reply.clear()
    node.slow = frozenset({Kind.UPGRADE})
    upgrade = asyncio.create_task(
        ordered(client, node_id, Command(op_id="slow", kind=Kind.UPGRADE, family="a"), within=30)
    )
    await asyncio.wait_for(node.commands.get(), 10)
    assert (await ordered(client, node_id, Command(op_id="quick", family="b"), within=10)).answer is Answer.ACCEPTED
    assert not upgrade.done()
    node.may_reply.set()
    assert (await upgrade).op_id == "slow"


async def test_no_node_is_away_and_a_silent_node_is_no_answer(client, node, node_id):
    with pytest.raises(NodeAway):
        await client.ask("nobody", "op", within=10)
    node.is_silent = True
    with pytest.raises(NoAnswer):
        await ordered(client, node_id, Command(op_id="op", family="echo"), within=0.2)


@pytest.mark.parametrize("payload", [b"not json", b"[1]", b"\xff\xfe"])
async def test_an_unreadable_command_is_refused_with_one_line(control, node, node_id, payload):
    with structlog.testing.capture_logs() as lines:
        answer = await control.request(subjects.install(node_id), payload, within=10)
    reply = CommandReply.decode(unverified(answer.data))
    assert (reply.answer, reply.reason) == (Answer.REFUSED, Reason.REFUSED_BY_NODE)
    assert [line["event"] for line in lines] == ["nats.unreadable"]
    assert node.received == []


async def test_failing_handler_sends_no_reply_and_keeps_serving(client, node, node_id):
    """S61. Not a refusal: that would be final, and the fault is ours."""
    node.is_broken = True
    with structlog.testing.capture_logs() as lines, pytest.raises(NoAnswer):
        await ordered(client, node_id, Command(op_id="op", family="echo"), within=0.2)
    assert [line["event"] for line in lines] == ["nats.not_answered"]
    node.is_broken = False
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
async def test_stop_comes_with_or_without_a_name(control, node, node_id, payload):
    """S43."""
    await control.publish(subjects.stop_backend(node_id), payload)
    await asyncio.wait_for(node.stopped.get(), 10)


async def test_localai_worker_serves_neither_cancel_nor_op(client, start_node: StartNode, node_id):
    await serve_localai(await start_node(node_id, protocol=1), node_id, SimulatedNode())
    assert (await client.command(node_id, Command(op_id="op"), within=10)).op_id == "op"
    with pytest.raises(NodeAway):
        await client.cancel(node_id, CancelCommand(op_id="op"), within=10)
    with pytest.raises(NodeAway):
        await client.ask(node_id, "op", within=10)

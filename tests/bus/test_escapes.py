"""Four methods by which the credential of one node once reached another node; the NATS server refuses each of them."""

import asyncio

import pytest
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus
from nodesmith.contracts.nats import subjects
from tests.bus.conftest import StartNode

ATTACKER, VICTIM, OP = "attacker", "victim", "op-1"
MARK = b'{"mark": true}'
FORGED = b'{"op_id": "op-1", "result": "succeeded", "success": true}'


async def listening(bus: Bus, subject: str) -> list[bytes]:
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    await bus.subscribe(subject, hear)
    return heard


async def send_by_reply_grant(attacker: Bus, subject: str) -> None:
    """Send oneself a message whose reply subject is the target: with allow_responses, that grants the target."""
    granted = asyncio.Event()

    async def hear(_message: Msg) -> None:
        granted.set()

    own = subjects.heartbeat(ATTACKER)
    await attacker.subscribe(own, hear)
    await attacker._client.publish(own, b"{}", reply=subject)
    await asyncio.wait_for(granted.wait(), 10)
    await attacker.publish(subject, FORGED)
    await attacker.settle()


@pytest.mark.parametrize("kind", [subjects.install, subjects.stop_node])
async def test_node_cannot_command_another_node_by_reply_grant(start_node: StartNode, control, kind):
    attacker, victim = await start_node(ATTACKER), await start_node(VICTIM)
    heard = await listening(victim, kind(VICTIM))
    await send_by_reply_grant(attacker, kind(VICTIM))
    await control.publish(kind(VICTIM), MARK)
    await control.settle()
    await victim.settle()
    assert heard == [MARK]


async def test_node_cannot_report_the_outcome_of_another_node_by_reply_grant(start_node: StartNode, control):
    attacker, victim = await start_node(ATTACKER), await start_node(VICTIM)
    heard = await listening(control, subjects.EVERY_OUTCOME)
    await send_by_reply_grant(attacker, subjects.outcome(VICTIM, OP))
    await victim.publish(subjects.outcome(VICTIM, OP), MARK)
    await victim.settle()
    await control.settle()
    assert heard == [MARK]


@pytest.mark.parametrize("protocol", [1, 2])
async def test_node_cannot_answer_for_another_node(start_node: StartNode, control, protocol):
    """Even with the reply subject at hand, which it would have to guess: 128 random bits."""
    attacker, victim = await start_node(ATTACKER, protocol=protocol), await start_node(VICTIM)

    async def leak(message: Msg) -> None:
        await attacker.publish(message.reply, FORGED)
        await attacker.settle()
        await victim.publish(message.reply, MARK)

    await victim.subscribe(subjects.operation(VICTIM), leak)
    assert (await control.request(subjects.operation(VICTIM), b"{}", within=10)).data == MARK

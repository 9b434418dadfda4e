"""A node speaks only for itself: refused by the server, not by good manners."""

import asyncio
import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable

import pytest
from nats.aio.msg import Msg

from bus.connection import Bus
from contracts import subjects
from domain.errors import NodeAway
from tests.bus.conftest import StartNode

OTHER = "0b7d8f5e-other"
OP = "op-1"
NO_SUBJECTS = {"inbox", "node_publishes", "node_subscribes"}
"""name a node, but are permissions, or the beginning of a subject"""


def subjects_of_a_node() -> dict[str, Callable[[str], str]]:
    """Every subject that names a node, found in the module itself: a new one is covered by being there."""
    found: dict[str, Callable[[str], str]] = {}
    for name, function in inspect.getmembers(subjects, inspect.isfunction):
        parameters = inspect.signature(function).parameters
        if "node_id" in parameters and name not in NO_SUBJECTS:
            found[name] = functools.partial(function, **dict.fromkeys(parameters.keys() - {"node_id"}, OP))
    return found


OF_A_NODE = subjects_of_a_node()
REPORTS = {"heartbeat", "progress", "outcome"}


def test_the_subjects_are_all_there() -> None:
    """What is published on the wire is one of these, or an inbox."""
    assert set(OF_A_NODE) >= {"install", "upgrade", "delete", "cancel", "operation", *REPORTS}
    assert all(subject(OTHER).startswith(f"nodes.{OTHER}.") for subject in OF_A_NODE.values())
    assert len(OF_A_NODE) >= 11


async def refusals_after(bus: Bus, act: Awaitable[object]) -> list[str]:
    before = len(bus.refusals)
    await act
    await bus.settle()
    return list(bus.refusals)[before:]


async def ignore(_message: Msg) -> None:
    pass


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("kind", OF_A_NODE)
async def test_a_node_cannot_publish_for_another_node(start_node: StartNode, node_id, kind, protocol):
    bus = await start_node(node_id, protocol=protocol)
    subject = OF_A_NODE[kind](OTHER)
    (refusal,) = await refusals_after(bus, bus.publish(subject, b"{}"))
    assert subject in refusal


@pytest.mark.parametrize("kind", OF_A_NODE)
async def test_a_node_cannot_hear_another_node(start_node: StartNode, node_id, kind):
    bus = await start_node(node_id)
    subject = OF_A_NODE[kind](OTHER)
    (refusal,) = await refusals_after(bus, bus.subscribe(subject, ignore))
    assert subject in refusal


@pytest.mark.parametrize("subject", ["nodes.>", "nodes.*.heartbeat", "_INBOX.>", ">", f"_INBOX_{OTHER}.>", "$SYS.>"])
async def test_a_node_cannot_hear_everybody(start_node: StartNode, node_id, subject):
    bus = await start_node(node_id)
    assert await refusals_after(bus, bus.subscribe(subject, ignore))


@pytest.mark.parametrize("kind", sorted(set(OF_A_NODE) - REPORTS))
async def test_a_node_cannot_even_command_itself(start_node: StartNode, node_id, kind):
    bus = await start_node(node_id)
    assert await refusals_after(bus, bus.publish(OF_A_NODE[kind](node_id), b"{}"))


@pytest.mark.parametrize("kind", sorted(REPORTS))
async def test_a_node_may_report_of_itself(start_node: StartNode, control, node_id, kind):
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def hear(message: Msg) -> None:
        heard.set_result(message.data)

    subject = OF_A_NODE[kind](node_id)
    await control.subscribe(subject, hear)
    bus = await start_node(node_id)
    assert await refusals_after(bus, bus.publish(subject, b"{}")) == []
    assert await asyncio.wait_for(heard, 10) == b"{}"


async def test_a_node_cannot_answer_a_question_it_was_not_asked(start_node: StartNode, node_id):
    bus = await start_node(node_id)
    assert await refusals_after(bus, bus.publish("_INBOX.somebody.else", b"{}"))


async def test_a_localai_worker_may_answer_to_any_inbox_but_listen_to_none(start_node: StartNode, node_id):
    bus = await start_node(node_id, protocol=1)
    assert await refusals_after(bus, bus.publish("_INBOX.somebody.asked", b"{}")) == []
    assert await refusals_after(bus, bus.subscribe("_INBOX.>", ignore))


async def test_a_node_id_with_a_wildcard_gives_no_more_rights(start_node: StartNode, control):
    """`*` and `>` in an id become dashes before they reach a permission."""
    bus = await start_node("a.>")
    assert await refusals_after(bus, bus.publish(subjects.heartbeat(OTHER), b"{}"))
    assert await refusals_after(bus, bus.subscribe("nodes.a.>", ignore))


async def test_a_refused_subscription_leaves_the_link_in_order(start_node: StartNode, control, node_id):
    bus = await start_node(node_id)
    await bus.subscribe(subjects.install(OTHER), ignore)

    async def answer(message: Msg) -> None:
        await bus.publish(message.reply, b"here")

    await bus.subscribe(subjects.list_backends(node_id), answer)
    assert await control.request(subjects.list_backends(node_id), b"{}", within=10) == b"here"
    with pytest.raises(NodeAway):
        await control.request(subjects.install(str(uuid.uuid4())), b"{}", within=10)

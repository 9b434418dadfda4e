"""The link reconnects by itself, and distinguishes a missing subscriber from a missing answer."""

import asyncio
from datetime import timedelta

import pytest
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus, Handler, connect_control, node_bus
from nodesmith.contracts.nats import subjects
from nodesmith.domain.errors import LinkDown, NoAnswer, NodeAway
from nodesmith.domain.node import NatsCredential
from tests.bus.conftest import HOUR, StartNode
from tests.conftest import NatsFactory


def echo(bus: Bus) -> Handler:
    async def answer(message: Msg) -> None:
        await bus.publish(message.reply, message.data)

    return answer


async def never(_message: Msg) -> None:
    pass


async def test_request_without_a_subscriber_fails_at_once(control, node_id):
    with pytest.raises(NodeAway):
        await asyncio.wait_for(control.request(subjects.install(node_id), b"{}", within=60), 10)


async def test_a_listener_that_does_not_answer_is_no_answer(control, start_node: StartNode, node_id):
    """S39."""
    bus = await start_node(node_id)
    await bus.subscribe(subjects.install(node_id), never)
    with pytest.raises(NoAnswer):
        await control.request(subjects.install(node_id), b"{}", within=0.2)


async def test_a_subscription_is_in_force_when_subscribe_returns(control, start_node: StartNode, node_id):
    """Forty times, because the client's own flush lets the question overtake the subscription now and then."""
    bus = await start_node(node_id)
    for number in range(40):
        subject = f"nodes.{node_id}.backend.test-{number}"
        await bus.subscribe(subject, echo(bus))
        assert (await control.request(subject, b"x", within=10)).data == b"x"


async def test_request_without_a_server_fails_as_link_down(private_nats: NatsFactory):
    server = await private_nats()
    await server.kill()
    bus = await connect_control(server.url, server.issuer, keys=server.issuer, name="test", connect_within=0.1)
    assert not bus.is_up
    assert not await bus.publish("nodes.x.stop", b"")
    with pytest.raises(LinkDown):
        await bus.request("nodes.x.stop", b"", within=0.2)
    await bus.close()


async def test_who_is_not_back_yet_after_a_restart_is_not_away(private_nats: NatsFactory, monkeypatch, node_id):
    """Nodes find the server again within seconds of us: what is said of them before is said of the link."""
    server = await private_nats()
    control = await connect_control(server.url, server.issuer, keys=server.issuer, name="test")
    with pytest.raises(NodeAway):
        await control.request(subjects.install(node_id), b"{}", within=10)
    back = asyncio.Event()
    control.on_reconnect(back.set)
    await server.kill()
    await server.restart()
    await asyncio.wait_for(back.wait(), 30)
    with pytest.raises(LinkDown):
        await control.request(subjects.install(node_id), b"{}", within=10)
    monkeypatch.setattr(control, "_peers_return_s", 0.0)
    with pytest.raises(NodeAway):
        await control.request(subjects.install(node_id), b"{}", within=10)
    await control.close()


async def test_a_server_that_starts_later_is_found(private_nats: NatsFactory):
    server = await private_nats()
    await server.kill()
    bus = await connect_control(server.url, server.issuer, keys=server.issuer, name="test", connect_within=0.1)
    await server.restart()
    assert await bus.wait_up(30)
    with pytest.raises(NodeAway):
        await bus.request("nodes.x.stop", b"", within=10)
    await bus.close()


async def test_after_a_killed_server_both_ends_come_back_with_their_subscriptions(private_nats: NatsFactory, node_id):
    server = await private_nats()
    control = await connect_control(server.url, server.issuer, keys=server.issuer, name="test")
    node = node_bus(server.url, node_id, lambda: server.issuer.node_credential(node_id, lifetime=HOUR))
    node.start()
    await node.wait_up(10)
    await node.subscribe(subjects.install(node_id), echo(node))
    back = asyncio.Event()
    control.on_reconnect(back.set)
    await server.kill()
    await server.restart()
    await asyncio.wait_for(back.wait(), 30)
    assert await node.wait_up(30)
    await node.settle()
    assert (await control.request(subjects.install(node_id), b"again", within=10)).data == b"again"
    await node.close()
    await control.close()


async def test_a_question_whose_link_is_lost_ends_at_once(private_nats: NatsFactory, node_id):
    """A reply cannot come any more: nobody waits the fifteen minutes of a long request for it."""
    server = await private_nats()
    control = await connect_control(server.url, server.issuer, keys=server.issuer, name="test")
    node = node_bus(server.url, node_id, lambda: server.issuer.node_credential(node_id, lifetime=HOUR))
    heard = asyncio.Event()

    async def take_note(_message: Msg) -> None:
        heard.set()

    await node.subscribe(subjects.install(node_id), take_note)
    node.start()
    await node.wait_up(10)
    asking = asyncio.create_task(control.request(subjects.install(node_id), b"{}", within=900))
    await asyncio.wait_for(heard.wait(), 10)
    await server.kill()
    with pytest.raises(NoAnswer):
        await asyncio.wait_for(asking, 10)
    await node.close()
    await control.close()


async def test_cancelling_a_question_is_no_answer_of_the_node(control, start_node: StartNode, node_id):
    bus = await start_node(node_id)
    await bus.subscribe(subjects.install(node_id), never)
    asking = asyncio.create_task(control.request(subjects.install(node_id), b"{}", within=60))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_credential_that_ends_is_replaced_by_the_newest_one(nats_server, control, node_id):
    """The server drops an expired user for good; the bus opens a new link with its subscriptions."""
    issued: list[NatsCredential] = []

    def newest() -> NatsCredential:
        lifetime = timedelta(seconds=2) if not issued else HOUR
        issued.append(nats_server.issuer.node_credential(node_id, lifetime=lifetime))
        return issued[-1]

    node = node_bus(nats_server.url, node_id, newest)
    back = asyncio.Event()
    node.on_reconnect(back.set)
    await node.subscribe(subjects.install(node_id), echo(node))
    node.start()
    assert await node.wait_up(10)
    await asyncio.wait_for(back.wait(), 30)
    assert (await control.request(subjects.install(node_id), b"x", within=10)).data == b"x"
    assert len(issued) == 2
    await node.close()


async def test_renewing_takes_the_newest_credential_before_the_old_one_ends(nats_server, control, node_id):
    issued: list[NatsCredential] = []

    def newest() -> NatsCredential:
        issued.append(nats_server.issuer.node_credential(node_id, lifetime=HOUR))
        return issued[-1]

    node = node_bus(nats_server.url, node_id, newest)
    back = asyncio.Event()
    node.on_reconnect(back.set)
    await node.subscribe(subjects.install(node_id), echo(node))
    node.start()
    assert await node.wait_up(10)
    await node.renew()
    await asyncio.wait_for(back.wait(), 10)
    await node.settle()
    assert (await control.request(subjects.install(node_id), b"x", within=10)).data == b"x"
    assert len(issued) == 2
    await node.close()


async def test_a_credential_that_cannot_be_had_yet_is_asked_for_again(nats_server, node_id):
    asked = 0

    def newest() -> NatsCredential:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise LookupError("not registered yet")
        credential: NatsCredential = nats_server.issuer.node_credential(node_id, lifetime=HOUR)
        return credential

    node = node_bus(nats_server.url, node_id, newest)
    node.start()
    assert await node.wait_up(30)
    await node.close()


async def test_a_credential_of_foreign_keys_is_never_let_in(nats_server, private_nats: NatsFactory, node_id):
    stranger = await private_nats()
    node = node_bus(nats_server.url, node_id, lambda: stranger.issuer.node_credential(node_id, lifetime=HOUR))
    node.start()
    assert not await node.wait_up(0.5)
    await node.close()

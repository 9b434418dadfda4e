"""Every subject x every credential x {publish, subscribe, publish by reply grant}, on a real server.

The subjects are found in `contracts/nats/subjects.py`, so a new one is tried as soon as it is there. `expected` states
what is allowed a second time and shares no code with the permissions.
"""

import asyncio
import base64
import functools
import inspect
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta

import pytest
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus
from nodesmith.bus.nkeys import KeyPair
from nodesmith.bus.revocation import AccountLink
from nodesmith.contracts.nats import subjects
from nodesmith.domain.errors import NodeAway
from nodesmith.domain.node import NatsCredential
from tests.bus.conftest import HOUR, StartNode
from tests.conftest import NatsFactory
from tests.servers import NatsForTests

NODES = ("node-a", "node-b", "localai")
WHO = (*NODES, "control")
OP = "op-1"
REPORTS = {"heartbeat", "progress", "outcome"}
NO_SUBJECTS = {"node_publishes", "node_subscribes", "command"}
"""name a node, but are permissions, or one of the other subjects by the kind of operation"""
FOREIGN = ("$SYS.REQ.SERVER.PING", "$SYS.ACCOUNT.x.CONNECT", "_INBOX.x.y", "anything")
WILDCARDS = (">", "nodes.>", "nodes.*.heartbeat", "nodes.*.backend.>", "_R.>", "_INBOX.>", "$SYS.>")


def subjects_of_a_node() -> dict[str, Callable[[str], str]]:
    found: dict[str, Callable[[str], str]] = {}
    for name, function in inspect.getmembers(subjects, inspect.isfunction):
        parameters = inspect.signature(function).parameters
        if "node_id" in parameters and name not in NO_SUBJECTS:
            found[name] = functools.partial(function, **dict.fromkeys(parameters.keys() - {"node_id"}, OP))
    found["reply"] = lambda node_id: subjects.reply(subjects.operation(node_id), "0" * 32, "1" * 32)
    return found


OF_A_NODE = subjects_of_a_node()
EVERY = {(kind, node): make(node) for kind, make in OF_A_NODE.items() for node in NODES}


def may_publish(who: str, kind: str, node: str) -> bool:
    if who == "control":
        return kind != "reply"
    return who == node and kind in {*REPORTS, "reply"}


def may_subscribe(who: str, kind: str, node: str) -> bool:
    if who == "control":
        return kind in {*REPORTS, "reply"}
    return who == node and kind != "reply"


def test_every_subject_is_in_the_table() -> None:
    commands = {"install", "upgrade", "delete", "cancel", "operation", "stop_node", "boot", "logs", "trust"}
    assert set(OF_A_NODE) >= {*commands, *REPORTS, "reply"}
    assert len(EVERY) == len(OF_A_NODE) * len(NODES) == len(set(EVERY.values()))


@pytest.fixture(scope="module")
async def buses(nats_server) -> AsyncIterator[dict[str, Bus]]:
    """One connection a credential, for the whole table."""
    credentials = {
        name: nats_server.issuer.node_credential(name, lifetime=HOUR, protocol=1 if name == "localai" else 2)
        for name in NODES
    }
    credentials["control"] = nats_server.issuer.control_credential(HOUR)
    opened = {
        name: Bus(nats_server.url, functools.partial(credentials.__getitem__, name), name=name, sends_requests=False)
        for name in credentials
    }
    for bus in opened.values():
        bus.start()
        assert await bus.wait_up(10)
    yield opened
    for bus in opened.values():
        await bus.close()


async def refused(bus: Bus, tried: Iterable[str], act: Callable[[str], Awaitable[object]]) -> set[str]:
    """Which of these subjects the server refused."""
    found: set[str] = set()
    for subject in tried:
        bus.refusals.clear()
        await act(subject)
        await bus.settle()
        if any(f'"{subject}"'.lower() in refusal.lower() for refusal in bus.refusals):
            found.add(subject)
    return found


async def ignore(_message: Msg) -> None:
    """Nobody reads it."""


@pytest.mark.parametrize("who", WHO)
async def test_a_credential_publishes_what_is_its_own_and_nothing_else(buses, who):
    bus = buses[who]
    expected = {subject for key, subject in EVERY.items() if not may_publish(who, *key)} | set(FOREIGN)
    assert await refused(bus, [*EVERY.values(), *FOREIGN], lambda subject: bus.publish(subject, b"{}")) == expected


@pytest.mark.parametrize("who", WHO)
async def test_a_credential_receives_what_is_its_own_and_nothing_else(buses, who):
    bus = buses[who]
    tried = [*EVERY.values(), *FOREIGN, *WILDCARDS]
    wide = set(WILDCARDS) - ({"nodes.*.heartbeat", "_R.>"} if who == "control" else set())
    expected = {subject for key, subject in EVERY.items() if not may_subscribe(who, *key)} | set(FOREIGN) | wide
    assert await refused(bus, tried, lambda subject: bus._client.subscribe(subject, cb=ignore)) == expected


@pytest.mark.parametrize("who", NODES)
async def test_a_reply_subject_that_a_node_sends_itself_grants_nothing(buses, who):
    bus, own = buses[who], subjects.heartbeat(who)
    received: asyncio.Queue[str] = asyncio.Queue()

    async def receive(message: Msg) -> None:
        received.put_nowait(message.reply)

    await bus.subscribe(own, receive)

    async def publish_after_grant(subject: str) -> None:
        await bus._client.publish(own, b"{}", reply=subject)
        while await asyncio.wait_for(received.get(), 10) != subject:
            pass
        await bus.publish(subject, b"{}")

    expected = {subject for key, subject in EVERY.items() if not may_publish(who, *key)} | set(FOREIGN)
    assert await refused(bus, [*EVERY.values(), *FOREIGN], publish_after_grant) == expected


async def can_connect(server: NatsForTests, credential: NatsCredential | None) -> bool:
    """Speak the protocol by hand: the client would try again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    info = json.loads((await reader.readline()).removeprefix(b"INFO "))
    proof: dict[str, str] = {}
    if credential is not None:
        key = KeyPair.from_seed(credential.seed)
        proof = {"jwt": credential.jwt, "sig": base64.b64encode(key.sign(info["nonce"].encode())).decode()}
    writer.write(f"CONNECT {json.dumps(proof)}\r\nPING\r\n".encode())
    answer = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()
    return answer.strip() in (b"+OK", b"PONG")


async def test_no_credential_an_expired_one_or_a_revoked_one_opens_no_connection(private_nats: NatsFactory):
    server = await private_nats()
    fresh = server.issuer.node_credential("node-a", lifetime=HOUR)
    assert await can_connect(server, fresh)
    assert not await can_connect(server, None)
    assert not await can_connect(server, server.issuer.node_credential("node-a", lifetime=timedelta(seconds=-60)))
    link = AccountLink(server.url, server.trust)
    link.start()
    await link.wait_for_new_link()
    await link.revoke({fresh.user: fresh.expires_at})
    assert not await can_connect(server, fresh)
    await link.close()


async def test_a_node_id_with_a_wildcard_gives_no_more_rights(start_node: StartNode):
    """`*` and `>` in an id become dashes before they reach a permission."""
    bus = await start_node("a.>")
    beat, wild = subjects.heartbeat("node-b"), "nodes.a.>"
    assert await refused(bus, [beat], lambda subject: bus.publish(subject, b"{}")) == {beat}
    assert await refused(bus, [wild], lambda subject: bus.subscribe(subject, ignore)) == {wild}


async def test_a_refused_subscription_leaves_the_link_in_order(start_node: StartNode, control, node_id):
    bus = await start_node(node_id)
    await bus.subscribe(subjects.install("node-b"), ignore)

    async def answer(message: Msg) -> None:
        await bus.publish(message.reply, b"here")

    await bus.subscribe(subjects.list_backends(node_id), answer)
    assert (await control.request(subjects.list_backends(node_id), b"{}", within=10)).data == b"here"
    with pytest.raises(NodeAway):
        await control.request(subjects.install(str(uuid.uuid4())), b"{}", within=10)

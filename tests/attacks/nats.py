"""Attacks with a node's NATS credential, stolen from its `identity.json`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus, connect_control, node_bus
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.bus.reports import NodeReports
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import Command, Outcome, Result
from nodesmith.contracts.nats.presence import StopOrder, StopWhy
from nodesmith.domain.kinds import Kind
from nodesmith.domain.node import NatsCredential
from tests.attacks.frame import Attack, AttackSucceeded, Severity, System

LONG = 10.0
GUESSES = 131_072
_FORGED = b'{"forged": true}'


@asynccontextmanager
async def as_node(system: System, node: str) -> AsyncIterator[Bus]:
    """Connect with the credential stolen from that node."""
    stolen = system.identity(node)
    ends = datetime.now(UTC) + timedelta(hours=1)
    credential = NatsCredential(jwt=stolen["nats_jwt"], seed=stolen["nats_user_seed"], expires_at=ends)
    bus = node_bus(system.nats_url, stolen["node_id"], lambda: credential)
    bus.start()
    try:
        if not await bus.wait_up(LONG):
            raise AttackSucceeded("the stolen credential gave no link, so nothing was tried")
        yield bus
    finally:
        await bus.close()


async def published(bus: Bus, subject: str, payload: bytes) -> str:
    """Return the server's refusal; a publish without one is a success of the adversary."""
    bus.refusals.clear()
    await bus.publish(subject, payload)
    await bus.settle()
    if not bus.refusals:
        raise AttackSucceeded(f"published on {subject}")
    return "NATS permission: publish is refused"


async def by_reply_grant(system: System, subject: str, payload: bytes) -> str:
    """Send a message to oneself with the target as its reply subject, then publish to that subject."""
    own = subjects.heartbeat(system.identity("agent-1")["node_id"])
    async with as_node(system, "agent-1") as bus:
        granted = asyncio.Event()

        async def receive(_message: Msg) -> None:
            granted.set()

        await bus.subscribe(own, receive)
        await bus._client.publish(own, b"{}", reply=subject)
        await asyncio.wait_for(granted.wait(), LONG)
        return await published(bus, subject, payload)


async def command_another_node(system: System) -> str:
    command = Command(kind=Kind.INSTALL, op_id="attack", family="x", backend="x", uri="file:///x", sha256="0" * 64)
    return await by_reply_grant(system, subjects.install(system.identity("agent-2")["node_id"]), command.encode())


async def retire_another_node(system: System) -> str:
    order = StopOrder(why=StopWhy.REMOVED)
    return await by_reply_grant(system, subjects.stop_node(system.identity("agent-2")["node_id"]), order.encode())


async def end_operation_of_another_node(system: System) -> str:
    victim = system.identity("agent-2")["node_id"]
    outcome = Outcome(op_id="attack", node_id=victim, result=Result.SUCCEEDED)
    return await by_reply_grant(system, subjects.outcome(victim, "attack"), outcome.encode())


async def answer_for_another_node(system: System) -> str:
    reply = subjects.reply(subjects.operation(system.identity("agent-2")["node_id"]), "0" * 32, "0" * 32)
    async with as_node(system, "agent-1") as bus:
        return await published(bus, reply, b"{}")


async def flood_of_guessed_replies(system: System) -> str:
    """Send as many replies as once hit another node's, while a control plane's client listens for them."""
    victim, heard = system.identity("agent-2")["node_id"], list[str]()

    async def hear(message: Msg) -> None:
        if message.data == _FORGED:
            heard.append(message.subject)

    seed = (system.folder / "secrets" / "nats-account-seed").read_text().strip()
    control = await connect_control(system.nats_url, CredentialIssuer(seed), name="listener")
    own = subjects.reply(subjects.operation(system.identity("agent-1")["node_id"]), "0" * 32, "0" * 32)
    try:
        await control.subscribe("_R.>", hear)
        await control.settle()
        async with as_node(system, "agent-1") as bus:
            for number in range(GUESSES):
                guess = subjects.reply(subjects.operation(victim), f"{number % 2:032x}", f"{number // 2:032x}")
                await bus._client.publish(guess, _FORGED)
            await bus._client.publish(own, _FORGED)
            await bus.settle()
            refusals = len(bus.refusals)
        async with asyncio.timeout(LONG):
            while own not in heard:  # noqa: ASYNC110 - proves that the listener would have heard the others
                await asyncio.sleep(0.05)
    finally:
        await control.close()
    if heard != [own] or not refusals:
        raise AttackSucceeded(f"{len(heard) - 1} forged replies arrived")
    return f"NATS permission: none of {GUESSES} arrived, one for the node itself did"


async def read_commands_of_another_node(system: System) -> str:
    victim = system.identity("agent-2")["node_id"]
    async with as_node(system, "agent-1") as bus:

        async def ignore(_message: Msg) -> None:
            """Do nothing: a permitted subscription already proves the attack."""

        await bus.subscribe(f"nodes.{victim}.>", ignore)
        if not bus.refusals:
            raise AttackSucceeded("subscribed to the commands of another node")
    return "NATS permission: subscribe is refused"


async def report_with_anothers_subject(system: System) -> str:
    victim = system.identity("agent-2")["node_id"]
    async with as_node(system, "agent-1") as bus:
        await NodeReports(bus, victim).outcome(Outcome(op_id="attack", result=Result.SUCCEEDED))
        await bus.settle()
        if not bus.refusals:
            raise AttackSucceeded("reported an outcome as another node")
    return "NATS permission: publish is refused"


async def register_localai_worker(system: System) -> str:
    token = (system.folder / "secrets" / "registration-token").read_text().strip()
    async with system.client(token) as http:
        answer = await http.post("/api/node/register", json={"name": "rogue", "address": "10.0.0.9:1"})
    if answer.status_code != 403:
        raise AttackSucceeded(f"HTTP {answer.status_code}: {answer.text[:200]}")
    return "HTTP 403: LocalAI workers are not admitted"


ATTACKS = (
    Attack("a node commands another node, by a reply grant", Severity.CRITICAL, command_another_node),
    Attack("a node ends another node's operation, by a reply grant", Severity.CRITICAL, end_operation_of_another_node),
    Attack("a node retires another node, by a reply grant", Severity.CRITICAL, retire_another_node),
    Attack("a node answers for another node", Severity.HIGH, answer_for_another_node),
    Attack("a node floods another node's reply subjects", Severity.HIGH, flood_of_guessed_replies, 180),
    Attack("a node reads the commands of another node", Severity.HIGH, read_commands_of_another_node),
    Attack("a node reports an outcome as another node", Severity.CRITICAL, report_with_anothers_subject),
    Attack("a LocalAI worker registers though none is wanted", Severity.HIGH, register_localai_worker),
)

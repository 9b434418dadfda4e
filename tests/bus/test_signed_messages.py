"""Reports of a node count only with its own signature, whatever the NATS server or other nodes send."""

import asyncio
import json
from collections.abc import Sequence

import nats.errors
import pytest
from nats.aio.msg import Msg

from nodesmith.bus.commands import NodeClient, serve
from nodesmith.bus.connection import Bus, _Login
from nodesmith.bus.heartbeats import HeartbeatSink
from nodesmith.bus.nkeys import KeyPair, Role
from nodesmith.bus.reports import NodeReports, ReportHub
from nodesmith.bus.signed_messages import Signatures, Signed, opened, seal
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelReply,
    Command,
    CommandReply,
    NodeOperationStatus,
    OpQuestion,
    OpReply,
    Outcome,
    Result,
)
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.errors import BadSignature, NoAnswer, ServiceUnavailable
from nodesmith.domain.node import NatsCredential, NodeKey, Protocol
from tests.bus.conftest import HOUR, StartNode
from tests.bus.test_heartbeats import Ledger, beat_once
from tests.fakes.node import SimulatedNode

NODE, OP = "node-a", "op-1"
PAYLOAD = b'{"op_id": "op-1", "node_id": "node-a", "result": "succeeded"}'


class Registry:
    """Keys as PostgreSQL has them; counts how often it is asked."""

    def __init__(self, **keys: NodeKey) -> None:
        self.keys = keys
        self.asked = 0
        self.is_away = False

    async def keys_of(self, node_ids: Sequence[str]) -> dict[str, NodeKey]:
        self.asked += 1
        if self.is_away:
            raise ServiceUnavailable("PostgreSQL does not answer.")
        return {each: self.keys[each] for each in node_ids if each in self.keys}


def registered(key: KeyPair, protocol: Protocol = Protocol.NODESMITH) -> NodeKey:
    return NodeKey(protocol, key.public)


@pytest.fixture
def key() -> KeyPair:
    return KeyPair.create(Role.USER)


def test_an_envelope_holds_the_bytes_as_they_were_signed(key: KeyPair) -> None:
    odd = b'{ "a.b" : 1.50,\n"c":"\xc3\xa9" }'
    assert opened(key.public, Signed.OUTCOME, NODE, seal(key, Signed.OUTCOME, NODE, odd)) == odd


@pytest.mark.parametrize(
    ("what", "about", "changed"),
    [
        (Signed.REPLY, NODE, b""),
        (Signed.OUTCOME, "node-b", b""),
        (Signed.OUTCOME, NODE, b" "),
    ],
    ids=["signed for another purpose", "signed about another node", "changed on the way"],
)
def test_signature_is_invalid_for_anything_else(key: KeyPair, what: Signed, about: str, changed: bytes) -> None:
    with pytest.raises(BadSignature):
        opened(key.public, what, about, seal(key, Signed.OUTCOME, NODE, PAYLOAD) + changed)


def test_line_break_in_subject_does_not_shift_fields(key: KeyPair) -> None:
    envelope = seal(key, Signed.OUTCOME, NODE, b"x\n" + PAYLOAD)
    with pytest.raises(BadSignature):
        opened(key.public, Signed.OUTCOME, f"{NODE}\nx", envelope)


@pytest.mark.parametrize("data", [b"", b"..", b"{}", PAYLOAD, b"U.\xff.{}"])
async def test_what_is_not_signed_is_rejected_and_counted(key: KeyPair, data: bytes) -> None:
    signatures = Signatures(Registry(**{NODE: registered(key)}))
    with pytest.raises(BadSignature):
        await signatures.open(NODE, Signed.OUTCOME, NODE, data)
    assert signatures.rejected == {Signed.OUTCOME: 1}


async def test_newly_registered_key_is_accepted_after_one_read(key: KeyPair) -> None:
    now, registry = 0.0, Registry(**{NODE: registered(KeyPair.create(Role.USER))})
    signatures = Signatures(registry, clock=lambda: now)
    envelope = seal(key, Signed.OUTCOME, NODE, PAYLOAD)
    with pytest.raises(BadSignature):
        await signatures.open(NODE, Signed.OUTCOME, NODE, envelope)
    registry.keys[NODE], now = registered(key), 2.0
    assert await signatures.open(NODE, Signed.OUTCOME, NODE, envelope) == PAYLOAD
    assert await signatures.open(NODE, Signed.OUTCOME, NODE, envelope) == PAYLOAD
    assert registry.asked == 2


async def test_forged_messages_do_not_ask_the_registry_each_time(key: KeyPair) -> None:
    registry = Registry(**{NODE: registered(key)})
    signatures = Signatures(registry, clock=lambda: 0.0)
    for _ in range(100):
        with pytest.raises(BadSignature):
            await signatures.open(NODE, Signed.HEARTBEAT, NODE, PAYLOAD)
    assert registry.asked == 1


async def test_registry_outage_keeps_known_keys_and_accepts_no_others(key: KeyPair) -> None:
    now, registry = 0.0, Registry(**{NODE: registered(key)})
    signatures = Signatures(registry, clock=lambda: now)
    envelope = seal(key, Signed.OUTCOME, NODE, PAYLOAD)
    await signatures.load([NODE])
    registry.is_away, now = True, 1000.0
    assert await signatures.open(NODE, Signed.OUTCOME, NODE, envelope) == PAYLOAD
    with pytest.raises(ServiceUnavailable):
        await signatures.open("node-b", Signed.OUTCOME, "node-b", envelope)


@pytest.mark.parametrize("inserted", [b"\xff", b" ", b"\n", b"!"])
def test_envelope_with_other_bytes_in_its_signature_is_rejected(key: KeyPair, inserted: bytes) -> None:
    signer, signature, payload = seal(key, Signed.OUTCOME, NODE, PAYLOAD).split(b".", 2)
    changed = b".".join((signer, signature[:4] + inserted * 4 + signature[4:], payload))
    with pytest.raises(BadSignature):
        opened(key.public, Signed.OUTCOME, NODE, changed)


@pytest.mark.parametrize("nested", ["[" * 100_000, '{"a":' * 100_000])
def test_nested_outcome_in_a_reply_cannot_be_read(nested: str) -> None:
    reply = json.dumps({"op_id": OP, "answer": "too_late", "outcome": f"key.signature.{nested}"})
    with pytest.raises(ValueError, match="nested"):
        CancelReply.decode(reply.encode())


async def test_verified_outcome_matches_its_operation_and_uses_only_signed_bytes(key: KeyPair) -> None:
    signatures = Signatures(Registry(**{NODE: registered(key)}))
    said = Outcome(op_id=OP, node_id=NODE, result=Result.FAILED, error="no disk")
    signed = seal(key, Signed.OUTCOME, NODE, said.encode()).decode()
    claimed = Outcome(op_id=OP, node_id=NODE, result=Result.SUCCEEDED, signed=signed)
    proven = await signatures.verify_outcome(NODE, OP, claimed)
    assert (proven.result, proven.error, proven.signed) == (Result.FAILED, "no disk", signed)
    with pytest.raises(BadSignature):
        await signatures.verify_outcome(NODE, "op-2", claimed)
    with pytest.raises(BadSignature):
        await signatures.verify_outcome(NODE, OP, claimed.model_copy(update={"signed": ""}))


def test_an_outcome_keeps_its_envelope_wherever_it_is_written(key: KeyPair) -> None:
    said = Outcome(op_id=OP, node_id=NODE, result=Result.SUCCEEDED)
    signed = seal(key, Signed.OUTCOME, NODE, said.encode()).decode()
    reply = OpReply(op_id=OP, standing=NodeOperationStatus.ENDED, outcome=said.model_copy(update={"signed": signed}))
    read = OpReply.decode(reply.encode())
    assert read == reply
    assert read.outcome is not None
    assert read.outcome.signed == signed


@pytest.mark.parametrize(
    "nonce",
    ["nodesmith-outcome-v1\nnode-a\n{}", "x" * 65, "", "a b", "a.b"],
    ids=["a report", "long", "", "blank", "dot"],
)
def test_a_server_gets_no_signature_of_anything_but_a_nonce(key: KeyPair, nonce: str) -> None:
    """The key signs reports too: a NATS server that chose such a nonce could report in the node's name."""
    login = _Login(lambda: NatsCredential(jwt="x", seed=key.seed, expires_at=None))  # type: ignore[arg-type]
    with pytest.raises(nats.errors.Error):
        login.sign(nonce)
    assert login.sign("aN0nce_of-the-Server")


# over the wire ------------------------------------------------------------------------------------------------


async def test_replayed_reply_answers_no_other_request(control: Bus, start_node: StartNode, node_id):
    """The signature covers the token of the request."""
    bus = await start_node(node_id)
    earlier: list[bytes] = []

    async def answer(message: Msg) -> None:
        said = OpReply(op_id=OP, standing=NodeOperationStatus.ENDED).encode()
        earlier.append(bus.seal(Signed.REPLY, message.reply, said))
        await bus.publish(message.reply, earlier[0])

    await bus.subscribe(subjects.operation(node_id), answer)
    client = NodeClient(control, ReportHub(control))
    assert (await client.ask(node_id, OP, within=10)).standing is NodeOperationStatus.ENDED
    with pytest.raises(BadSignature):
        await client.ask(node_id, OP, within=10)


async def test_an_answer_that_comes_too_late_is_dropped(control: Bus, start_node: StartNode, node_id):
    bus = await start_node(node_id)
    asked: asyncio.Queue[str] = asyncio.Queue()

    async def note(message: Msg) -> None:
        asked.put_nowait(message.reply)

    await bus.subscribe(subjects.operation(node_id), note)
    with pytest.raises(NoAnswer):
        await control.request(subjects.operation(node_id), b"{}", within=0.1)
    waiting = asyncio.create_task(control.request(subjects.operation(node_id), b"{}", within=10))
    first, second = await asked.get(), await asked.get()
    await bus.publish(first, b"late")
    await bus.publish(second, b"in time")
    assert (await waiting).data == b"in time"
    assert first != second


async def test_unsigned_answers_and_outcomes_of_an_agent_are_dropped(control: Bus, nats_server, start_node: StartNode):
    """As a NATS server that forges them would send them."""
    bus = await start_node(NODE)
    hub = ReportHub(control)
    await hub.start()

    async def answer(message: Msg) -> None:
        await bus.publish(message.reply, CommandReply(answer=Answer.ENDED).encode())

    await bus.subscribe(subjects.install(NODE), answer)
    with pytest.raises(BadSignature):
        await NodeClient(control, hub).command(NODE, Command(op_id=OP), within=10)
    async with hub.attach(NODE, OP) as attached:
        await bus.publish(subjects.outcome(NODE, OP), PAYLOAD)
        await NodeReports(bus, NODE).outcome(Outcome(op_id=OP, result=Result.FAILED))
        report = await attached.next(10)
    assert isinstance(report, Outcome)
    assert (report.result, bool(report.signed)) == (Result.FAILED, True)
    assert control.signatures.rejected == {Signed.REPLY: 1, Signed.OUTCOME: 1}


async def test_outcomes_in_answers_are_signed_on_their_own(control: Bus, start_node: StartNode, node_id):
    class EndedNode(SimulatedNode):
        async def ask(self, question: OpQuestion) -> OpReply:
            outcome = Outcome(op_id=question.op_id, result=Result.SUCCEEDED)
            return OpReply(op_id=question.op_id, standing=NodeOperationStatus.ENDED, outcome=outcome)

    await serve(await start_node(node_id), node_id, EndedNode())
    reply = await NodeClient(control, ReportHub(control)).ask(node_id, OP, within=10)
    assert reply.outcome is not None
    assert await control.signatures.verify_outcome(node_id, OP, reply.outcome) == reply.outcome


async def test_a_heartbeat_without_the_nodes_signature_is_dropped(control: Bus, start_node: StartNode, node_id):
    ledger, stop = Ledger(), asyncio.Event()
    running = asyncio.create_task(HeartbeatSink(control, ledger.take, every=0.02).run(stop))
    bus = await start_node(node_id)
    forged = Heartbeat(node_id=node_id, boot_id="forged", seq=9)
    await bus.publish(subjects.heartbeat(node_id), forged.encode())
    await bus.publish(
        subjects.heartbeat(node_id), seal(KeyPair.create(Role.USER), Signed.HEARTBEAT, node_id, forged.encode())
    )
    await beat_once(bus, Heartbeat(node_id=node_id, seq=1))
    assert [each.seq for each in await ledger.until(bool)] == [1]
    stop.set()
    await running
    assert control.signatures.rejected == {Signed.HEARTBEAT: 2}


async def test_a_credential_for_a_key_of_the_node_has_no_seed(nats_server, key: KeyPair):
    made = nats_server.issuer.node_credential(NODE, lifetime=HOUR, user=key.public)
    assert (made.seed, made.user) == ("", key.public)
    assert not nats_server.issuer.is_user_key(KeyPair.create(Role.ACCOUNT).public)
    assert not nats_server.issuer.is_user_key(key.public[:-1])
    assert nats_server.issuer.is_user_key(key.public)

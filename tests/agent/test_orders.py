"""Verification of orders with real signatures; only the control plane is simulated."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nodesmith.agent.link.pinned_trust import PinFile, PinnedTrust
from nodesmith.agent.operations.order_checks import OrderRefused, OrderVerifier
from nodesmith.agent.operations.used_requests import UsedRequests
from nodesmith.contracts.nats.messages import Answer, Command
from nodesmith.contracts.nats.orders import SignedCommand
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from nodesmith.runtime.keyring import Keyring, now_ms
from nodesmith.runtime.trust_lists import NotTrusted
from tests.agent.operations_bench import Bench
from tests.orders import DAY_MS, OrderBook, new_keyring

NODE = "node-1"
ECHO = Command(op_id="op-1", kind=Kind.INSTALL, family="echo", backend="echo", uri="https://example.org/echo-1")


@dataclass
class FakeMemory:
    """Earlier operations of the node, and what is installed."""

    known: set[str] = field(default_factory=set)
    newest: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def knows(self, op_id: str) -> bool:
        return op_id in self.known

    def would_begin(self, op_id: str, decision: int) -> bool:
        return op_id not in self.known

    def newest_iat(self, family: str) -> int:
        return self.newest.get(family, 0)

    async def current(self, family: str) -> str:
        return self.digests.get(family, "")


@dataclass
class Scene:
    book: OrderBook
    memory: FakeMemory
    trust: PinnedTrust
    verifier: OrderVerifier

    async def send(self, command: Command = ECHO, **changes: Any) -> Command:
        return await self.verifier.verify_command(self.signed(command, **changes))

    def signed(self, command: Command = ECHO, **changes: Any) -> SignedCommand:
        order = self.book.order(NODE, command, **changes)
        return SignedCommand(order=self.book.keyring.sign(order), decision=command.decision)


def serving(keyring: Keyring, url: str = "http://127.0.0.1") -> httpx2.AsyncClient:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/api/v1/trust"
        return httpx2.Response(200, content=keyring.chain().model_dump_json())

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url=url)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    keyring = new_keyring(tmp_path / "keys")
    async with serving(keyring) as http:
        trust = PinnedTrust(http, PinFile(tmp_path))
        await trust.refresh()
        memory = FakeMemory()
        yield Scene(OrderBook(keyring), memory, trust, OrderVerifier(NODE, trust, memory, memory.current))


async def refused(scene: Scene, words: str, reason: Reason = Reason.REFUSED_BY_NODE, **changes: Any) -> None:
    with pytest.raises(OrderRefused, match=words) as why:
        await scene.send(**changes)
    assert why.value.reason is reason


async def test_order_becomes_the_command_that_it_says(scene: Scene) -> None:
    command = await scene.send(ECHO.model_copy(update={"decision": 3}), force=True)
    assert (command.uri, command.decision, command.force) == (ECHO.uri, 3, True)


async def test_order_for_another_node_is_refused(scene: Scene) -> None:
    await refused(scene, "for node node-2", node="node-2")


async def test_order_that_was_changed_is_refused(scene: Scene) -> None:
    signed = scene.signed()
    evil = signed.order.payload.replace("echo-1", "evil-1")
    forged = signed.model_copy(update={"order": signed.order.model_copy(update={"payload": evil})})
    with pytest.raises(OrderRefused, match="signature of the order is invalid"):
        await scene.verifier.verify_command(forged)


async def test_order_by_another_key_is_refused(scene: Scene, tmp_path: Path) -> None:
    foreign = new_keyring(tmp_path / "foreign").sign(scene.book.order(NODE, ECHO))
    with pytest.raises(OrderRefused, match="does not trust the key"):
        await scene.verifier.verify_command(SignedCommand(order=foreign, decision=1))
    known = foreign.model_copy(update={"kid": scene.book.keyring.signing_kid})
    with pytest.raises(OrderRefused, match="signature of the order is invalid"):
        await scene.verifier.verify_command(SignedCommand(order=known, decision=1))


async def test_expired_order_waits_for_its_renewal(scene: Scene) -> None:
    now = now_ms()
    await refused(scene, "expired", Reason.ORDER, iat=now - DAY_MS, exp=now - 1000)
    await scene.send(iat=now - DAY_MS, exp=now + DAY_MS)


async def test_order_is_judged_by_the_clock_of_the_control_plane(scene: Scene) -> None:
    now = now_ms()
    scene.trust.set_clock(formatdate(now / 1000 + 7200))
    await refused(scene, "expired", Reason.ORDER, exp=now + 3_600_000)


async def test_clock_of_the_node_is_not_before_the_newest_order(scene: Scene) -> None:
    now = now_ms()
    await scene.send(iat=now + 7_200_000, exp=now + DAY_MS)
    other = ECHO.model_copy(update={"op_id": "op-2", "family": "other"})
    with pytest.raises(OrderRefused, match="expired"):
        await scene.send(other, iat=now, exp=now + 3_600_000)


async def test_order_for_another_installed_version_is_refused(scene: Scene) -> None:
    await refused(scene, "nothing is installed now", if_current="sha256:aa")
    scene.memory.digests["echo"] = "sha256:bb"
    await refused(scene, "sha256:bb is installed now", if_current="sha256:aa")
    scene.memory.digests["echo"] = "sha256:aa"
    await scene.send(if_current="sha256:aa")


async def test_order_that_is_not_newer_than_the_newest_begun_is_refused(scene: Scene) -> None:
    now = now_ms()
    scene.memory.newest["echo"] = now
    await refused(scene, "newer order for echo has begun", iat=now)
    await refused(scene, "newer order for echo has begun", iat=now - 1)
    await scene.send(iat=now + 1)


async def test_known_operation_is_answered_from_the_journal(scene: Scene) -> None:
    """A repeated order is not newer than itself, and the version it replaced is gone."""
    scene.memory.known.add(ECHO.op_id)
    scene.memory.newest["echo"] = now_ms() + 1000
    assert (await scene.send(if_current="sha256:gone")).op_id == ECHO.op_id


@pytest.mark.parametrize("word", ["fail", "interrupt"])
async def test_earlier_operation_does_not_begin_again_once_a_newer_order_has_begun(scene: Scene, word: str) -> None:
    """The decision is not signed, so an attacker on NATS can repeat an old order with a higher one."""
    bench = Bench()
    verifier = OrderVerifier(NODE, scene.trust, bench.operations, scene.memory.current)
    old = scene.signed(ECHO.model_copy(update={"decision": 1}))
    await bench.send(await verifier.verify_command(old))
    if word == "fail":
        await bench.performer.finish("op-1", "fail")
        await bench.reporter.ended("op-1")
    else:
        await bench.operations.close()
        bench = Bench(bench.journal)
        verifier = OrderVerifier(NODE, scene.trust, bench.operations, scene.memory.current)
    assert await verifier.verify_command(old.model_copy(update={"decision": 2}))  # nothing newer has begun: a retry

    await bench.send(await verifier.verify_command(scene.signed(ECHO.model_copy(update={"op_id": "op-2"}))))
    await bench.performer.finish("op-2", "succeed")
    await bench.reporter.ended("op-2")
    with pytest.raises(OrderRefused, match="newer order for echo has begun"):
        await verifier.verify_command(old.model_copy(update={"decision": 99}))
    if word == "fail":  # an ended operation is still answered from the journal
        reply = await bench.send(await verifier.verify_command(old))
        assert reply.answer is Answer.ENDED
    assert bench.performer.begun.count("op-1") <= 1


async def test_unknown_key_makes_the_node_ask_for_newer_lists(scene: Scene) -> None:
    scene.book.keyring.rotate()
    assert (await scene.send()).op_id == ECHO.op_id
    assert scene.trust.version == 2


async def test_revoked_key_is_refused_once_the_newer_list_is_known(scene: Scene) -> None:
    old = scene.signed()
    scene.book.keyring.rotate(revoke=True)
    await scene.send()
    with pytest.raises(OrderRefused, match="does not trust the key"):
        await scene.verifier.verify_command(old)


async def test_pin_outlives_the_agent_and_another_control_plane_does_not_replace_it(
    scene: Scene, tmp_path: Path
) -> None:
    foreign = new_keyring(tmp_path / "foreign")
    async with serving(foreign) as http:
        with pytest.raises(NotTrusted, match="other keys"):
            await PinnedTrust(http, PinFile(tmp_path)).refresh()
        joined = PinnedTrust(http, PinFile(tmp_path), expected=foreign.fingerprint, may_replace=True)
        await joined.refresh()
        assert joined.version == 1


@pytest.mark.parametrize(
    ("url", "expected", "is_met"),
    [("http://10.0.0.5", False, False), ("http://10.0.0.5", True, True), ("https://10.0.0.5", False, True)],
)
async def test_first_contact_is_safe_or_has_a_fingerprint(
    tmp_path: Path, url: str, expected: bool, is_met: bool
) -> None:
    keyring = new_keyring(tmp_path / "keys")
    async with serving(keyring, url) as http:
        trust = PinnedTrust(http, PinFile(tmp_path), expected=keyring.fingerprint if expected else "")
        if is_met:
            await trust.refresh()
        else:
            with pytest.raises(NotTrusted, match="--trust"):
                await trust.refresh()
        assert (trust.version > 0) is is_met


async def test_request_is_signed_for_one_node_and_one_action_and_counts_once(scene: Scene) -> None:
    seal = scene.book.keyring.seal_request
    signed = seal(NODE, "model.delete", "{}")
    assert await scene.verifier.verify_request(signed, "model.delete") == "{}"
    for refused_request, action in (
        (signed, "model.delete"),
        (seal("another", "model.delete", "{}"), "model.delete"),
        (seal(NODE, "model.unload", "{}"), "model.delete"),
        (scene.signed().order, "model.delete"),
        (None, "model.delete"),
    ):
        with pytest.raises(OrderRefused):
            await scene.verifier.verify_request(refused_request, action)


async def test_request_is_not_carried_out_again_after_the_agent_has_restarted(scene: Scene) -> None:
    signed = scene.book.keyring.seal_request(NODE, "model.delete", "{}")
    assert await scene.verifier.verify_request(signed, "model.delete") == "{}"
    await asyncio.sleep(0.05)  # a restart takes longer
    restarted = OrderVerifier(NODE, scene.trust, scene.memory, scene.memory.current)
    with pytest.raises(OrderRefused, match="before this agent started"):
        await restarted.verify_request(signed, "model.delete")
    again = scene.book.keyring.seal_request(NODE, "model.delete", "{}")
    assert await restarted.verify_request(again, "model.delete") == "{}"


async def test_request_is_not_carried_out_again_by_an_agent_that_restarts_at_once(scene: Scene, tmp_path: Path) -> None:
    """The API's Date has whole seconds, so the time of the start alone does not tell the two processes apart."""
    file = tmp_path / "requests.json"
    for _ in range(2):
        signed = scene.book.keyring.seal_request(NODE, "model.delete", "{}")
        first = OrderVerifier(NODE, scene.trust, scene.memory, scene.memory.current, UsedRequests(file))
        assert await first.verify_request(signed, "model.delete") == "{}"
        scene.trust.set_clock(formatdate(now_ms() / 1000 - 1))
        restarted = OrderVerifier(NODE, scene.trust, scene.memory, scene.memory.current, UsedRequests(file))
        with pytest.raises(OrderRefused, match="carried out before"):
            await restarted.verify_request(signed, "model.delete")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": "b"}', "null"])
async def test_damaged_file_of_used_requests_does_not_keep_the_agent_from_starting(
    tmp_path: Path, content: str
) -> None:
    (file := tmp_path / "requests.json").write_text(content)
    used = UsedRequests(file)
    assert await used.use("n", 2, now=1)
    assert not await UsedRequests(file).use("n", 2, now=1)


async def test_stop_counts_after_the_clock_of_the_control_plane_was_ahead_for_a_while(scene: Scene) -> None:
    """An order that was signed twenty hours ahead does not make every stop of the next twenty hours too old."""
    scene.trust.set_clock(formatdate(now_ms() / 1000 + 20 * 3600))
    await scene.send(iat=now_ms() + 20 * 3600 * 1000, exp=now_ms() + 44 * 3600 * 1000)
    scene.trust.set_clock(formatdate(now_ms() / 1000))
    signed = scene.book.keyring.seal_request(NODE, "model.delete", "{}")
    assert await scene.verifier.verify_request(signed, "model.delete") == "{}"


async def test_refresh_of_the_trust_lists_corrects_the_clock(scene: Scene, tmp_path: Path) -> None:
    """The API's clock was set back after this node registered: its stops count as soon as the lists are read again."""
    keyring = scene.book.keyring
    date = [now_ms() / 1000 + 7200]

    def answer(_: httpx2.Request) -> httpx2.Response:
        chain = keyring.chain().model_dump_json()
        return httpx2.Response(200, content=chain, headers={"Date": formatdate(date[0])})

    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        trust = PinnedTrust(http, PinFile(tmp_path / "other"))
        (tmp_path / "other").mkdir()
        verifier = OrderVerifier(NODE, trust, scene.memory, scene.memory.current)
        await trust.refresh()
        with pytest.raises(OrderRefused, match=r"has expired|before this agent"):
            await verifier.verify_request(keyring.seal_request(NODE, "model.delete", "{}"), "model.delete")
        date[0] = now_ms() / 1000
        await trust.refresh()
        assert await verifier.verify_request(keyring.seal_request(NODE, "model.delete", "{}"), "model.delete") == "{}"

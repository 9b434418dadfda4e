"""A running node follows new trust lists, on notification and periodically, with a limited request rate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from nats.aio.msg import Msg

from nodesmith.agent.link import trust_watch
from nodesmith.agent.link.pinned_trust import PinFile, PinInMemory, PinnedTrust
from nodesmith.agent.link.trust_watch import TrustWatch
from nodesmith.agent.operations.order_checks import OrderRefused, OrderVerifier
from nodesmith.agent.settings import AgentSettings
from nodesmith.bus.commands import NodeClient
from nodesmith.bus.presence import Presence
from nodesmith.bus.signed_messages import unverified
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.orders import SignedTrustList
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.operation import Reason
from nodesmith.runtime.keyring import Keyring
from nodesmith.runtime.trust_lists import NotTrusted, read_list
from tests.agent.nodes import LONG, StartAgent
from tests.agent.test_orders import ECHO, NODE, FakeMemory
from tests.agent.waiting import until
from tests.agent.web import Web
from tests.orders import OrderBook, new_keyring

LATER = 3600.0


class TrustSite:
    """Serves and counts requests to /api/v1/trust."""

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring
        self.asked = 0
        self.is_away = False

    def answer(self, _request: httpx2.Request) -> httpx2.Response:
        self.asked += 1
        return httpx2.Response(503 if self.is_away else 200, content=self.keyring.chain().model_dump_json())


@asynccontextmanager
async def watched(
    lists: TrustSite, *, every_s: float = LATER, cooldown_s: float = LATER
) -> AsyncIterator[tuple[PinnedTrust, TrustWatch]]:
    transport = httpx2.MockTransport(lists.answer)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        trust = PinnedTrust(http, PinInMemory())
        await trust.refresh()
        lists.asked = 0
        watch = TrustWatch(trust, every_s=every_s, cooldown_s=cooldown_s, spread_s=0.0)
        running = asyncio.create_task(watch.run())
        try:
            yield trust, watch
        finally:
            running.cancel()


@pytest.fixture
def lists(tmp_path: Path) -> TrustSite:
    return TrustSite(new_keyring(tmp_path / "keys"))


def test_defaults_of_the_watch() -> None:
    """5,000 nodes send 6 requests per second; a notified fleet refreshes within three seconds."""
    interval = AgentSettings.model_fields["trust_interval"].default
    assert (interval, trust_watch.COOLDOWN_S, trust_watch.SPREAD_S) == (timedelta(minutes=15), 10.0, 3.0)


async def test_notified_node_refuses_a_revoked_key(lists: TrustSite) -> None:
    async with watched(lists) as (trust, watch):
        memory = FakeMemory()
        verifier, old = OrderVerifier(NODE, trust, memory, memory.current), OrderBook(lists.keyring).signed(NODE, ECHO)
        assert (await verifier.verify_command(old)).op_id == ECHO.op_id
        lists.keyring.rotate(revoke=True)
        watch.notify()
        await until(lambda: trust.version == 2, within=LONG)
        with pytest.raises(OrderRefused, match="does not trust the key"):
            await verifier.verify_command(old)


async def test_forged_notifications_cost_one_request(lists: TrustSite) -> None:
    """Anyone who controls NATS can send them; they change neither the trusted keys nor the request rate."""
    async with watched(lists) as (trust, watch):
        for _ in range(100):
            watch.notify()
            await asyncio.sleep(0)
        await until(lambda: lists.asked > 0, within=LONG)
        for _ in range(100):
            watch.notify()
            await asyncio.sleep(0)
        assert (lists.asked, trust.version) == (1, 1)


async def test_orders_with_invented_keys_cost_one_request(lists: TrustSite, tmp_path: Path) -> None:
    """Otherwise the owner of NATS could make the fleet flood the API; an order waits until the list is asked again."""
    async with watched(lists) as (trust, _watch):
        memory = FakeMemory()
        verifier = OrderVerifier(NODE, trust, memory, memory.current)
        for number in range(3):
            forged = OrderBook(new_keyring(tmp_path / f"forger-{number}")).signed(NODE, ECHO)
            with pytest.raises(OrderRefused) as refusal:
                await verifier.verify_command(forged)
            assert refusal.value.reason is (Reason.ORDER if number else Reason.REFUSED_BY_NODE)
        assert lists.asked == 1


async def test_concurrent_orders_of_a_new_key_are_all_accepted(lists: TrustSite) -> None:
    async with watched(lists) as (trust, _watch):
        memory = FakeMemory()
        verifier = OrderVerifier(NODE, trust, memory, memory.current)
        lists.keyring.rotate()
        signed = OrderBook(lists.keyring).signed(NODE, ECHO)
        verified = await asyncio.gather(*(verifier.verify_command(signed) for _ in range(3)))
        assert {command.op_id for command in verified} == {ECHO.op_id}
        assert lists.asked == 1


@pytest.mark.parametrize("payload", ["", "[" * 100_000, '{"version": "x"}', '{"version": 99}'])
async def test_trust_list_that_cannot_be_read_is_refused_like_a_foreign_one(lists: TrustSite, payload: str) -> None:
    """Any other error would end the watch, and the agent with it."""
    async with watched(lists) as (trust, _watch):
        damaged = SignedTrustList(payload=payload, signature="x")
        chain = lists.keyring.chain().followed_by(damaged)
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=chain.model_dump_json()))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            trust._http = http
            with pytest.raises(NotTrusted):
                await trust.refresh()


async def test_node_refreshes_although_notifications_are_dropped(lists: TrustSite) -> None:
    async with watched(lists, every_s=0.01, cooldown_s=0.0) as (trust, _):
        lists.is_away = True
        await until(lambda: lists.asked > 2, within=LONG)
        lists.keyring.rotate(revoke=True)
        lists.is_away = False
        await until(lambda: trust.version == 2, within=LONG)


async def test_running_agent_follows_a_notification_and_reports_it_in_its_heartbeat(
    start_agent: StartAgent,
    control_plane: Web,
    control: NodeClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trust_watch, "SPREAD_S", 0.0)
    control_plane.keyring = new_keyring(tmp_path / "keys")
    node = await start_agent()
    control_plane.keyring.rotate(revoke=True)
    versions: set[int] = set()

    async def hear(message: Msg) -> None:
        versions.add(Heartbeat.decode(unverified(message.data)).trust_version)

    await control._bus.subscribe(subjects.heartbeat(node.id), hear)
    await until(lambda: 1 in versions, within=LONG)
    assert await Presence(control._bus).announce_trust_list(node.id)
    await until(lambda: 2 in versions, within=LONG)
    pinned = SignedTrustList.model_validate_json((node.home / "trust.json").read_bytes())
    assert read_list(pinned).version == 2
    assert PinFile(node.home).load() == pinned

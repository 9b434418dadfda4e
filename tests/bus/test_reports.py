"""Reports reach only the followers of their operation."""

import asyncio
import uuid

import pytest
import structlog.testing

from nodesmith.bus.connection import connect_control
from nodesmith.bus.reports import NodeReports, ReportHub
from nodesmith.bus.signed_messages import Signed
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.messages import Outcome, Progress, Result
from tests.bus.conftest import StartNode
from tests.conftest import NatsFactory

LONG = 10.0


@pytest.fixture
async def hub(control):
    hub = ReportHub(control)
    await hub.start()
    return hub


@pytest.fixture
def op_id() -> str:
    return str(uuid.uuid4())


def tick(op_id: str, *, seq: int, decision: int = 1, done: int = 0) -> Progress:
    return Progress(op_id=op_id, seq=seq, decision=decision, bytes_done=done)


async def test_progress_and_outcome_come_in_order(hub, start_node: StartNode, node_id, op_id):
    reports = NodeReports(await start_node(node_id), node_id)
    async with hub.attach(node_id, op_id) as attached:
        await reports.progress(tick(op_id, seq=1, done=10))
        first = await attached.next(LONG)
        await reports.outcome(Outcome(op_id=op_id, result=Result.SUCCEEDED, decision=1))
        last = await attached.next(LONG)
    assert isinstance(first, Progress)
    assert (first.bytes_done, first.node_id) == (10, node_id)
    assert isinstance(last, Outcome)
    assert last.result is Result.SUCCEEDED


async def test_a_slow_reader_gets_the_newest_progress_only(hub, start_node: StartNode, node_id, op_id):
    """S41: a slow reader stalls nobody."""
    reports = NodeReports(await start_node(node_id), node_id)
    seen = asyncio.Event()
    hub.on_progress(lambda progress: seen.set() if progress.seq == 5 else None)
    async with hub.attach(node_id, op_id) as attached:
        for seq in range(1, 6):
            await reports.progress(tick(op_id, seq=seq))
        await asyncio.wait_for(seen.wait(), LONG)
        newest = await attached.next(LONG)
        assert isinstance(newest, Progress)
        assert newest.seq == 5
        assert await attached.next(0.05) is None


async def test_silence_returns_none(hub, node_id, op_id):
    async with hub.attach(node_id, op_id) as attached:
        assert await attached.next(0.05) is None


@pytest.mark.parametrize(
    ("earlier", "later", "is_news"),
    [
        ((1, 5), (1, 6), True),
        ((1, 5), (1, 5), False),
        ((1, 5), (1, 4), False),
        ((1, 5), (2, 1), True),
        ((2, 1), (1, 9), False),
        ((0, 0), (0, 0), True),
    ],
    ids=["next", "repeated", "overtaken", "new decision", "old decision", "LocalAI numbers nothing"],
)
async def test_stale_progress_is_dropped(hub, start_node: StartNode, node_id, op_id, earlier, later, is_news):
    """S41: stale."""
    reports = NodeReports(await start_node(node_id), node_id)
    heard: list[Progress] = []
    ended = asyncio.Event()
    hub.on_progress(heard.append)
    hub.on_unclaimed_outcome(lambda _outcome: ended.set())
    for decision, seq in (earlier, later):
        await reports.progress(tick(op_id, decision=decision, seq=seq))
    async with hub.attach(node_id, op_id) as attached:
        await reports.progress(tick(op_id, decision=9, seq=9))
        await attached.next(LONG)  # ticks of one node come in order: the two above are through as well
    assert len([progress for progress in heard if progress.decision < 9]) == (2 if is_news else 1)


async def test_outcome_of_an_earlier_decision_is_ignored(hub, start_node: StartNode, node_id, op_id):
    reports = NodeReports(await start_node(node_id), node_id)
    async with hub.attach(node_id, op_id) as attached:
        await reports.progress(tick(op_id, decision=2, seq=1))
        assert isinstance(await attached.next(LONG), Progress)
        await reports.outcome(Outcome(op_id=op_id, decision=1, result=Result.FAILED))
        await reports.outcome(Outcome(op_id=op_id, decision=2, result=Result.SUCCEEDED))
        outcome = await attached.next(LONG)
    assert isinstance(outcome, Outcome)
    assert outcome.result is Result.SUCCEEDED


async def test_outcome_without_follower_goes_to_the_listeners(hub, start_node: StartNode, node_id, op_id):
    unclaimed: asyncio.Queue[Outcome] = asyncio.Queue()
    hub.on_unclaimed_outcome(unclaimed.put_nowait)
    reports = NodeReports(await start_node(node_id), node_id)
    async with hub.attach(node_id, op_id) as attached:
        await reports.outcome(Outcome(op_id=op_id, result=Result.FAILED))
        assert await attached.next(LONG) is not None
    await reports.outcome(Outcome(op_id=op_id, result=Result.SUCCEEDED))
    alone = await asyncio.wait_for(unclaimed.get(), LONG)
    assert (alone.result, alone.node_id) == (Result.SUCCEEDED, node_id)
    assert unclaimed.empty()


async def test_two_followers_of_one_operation_receive_the_same(hub, start_node: StartNode, node_id, op_id):
    reports = NodeReports(await start_node(node_id), node_id)
    async with hub.attach(node_id, op_id) as one, hub.attach(node_id, op_id) as other:
        await reports.outcome(Outcome(op_id=op_id, result=Result.SUCCEEDED))
        assert await one.next(LONG) == await other.next(LONG)


async def test_a_node_cannot_report_on_the_operation_of_another(hub, start_node: StartNode, node_id, op_id):
    """The subject is what the server vouches for: the same op_id from another node is another operation."""
    liar = NodeReports(await start_node("liar"), "liar")
    async with hub.attach(node_id, op_id) as attached:
        await liar.outcome(Outcome(op_id=op_id, result=Result.SUCCEEDED))
        assert await attached.next(0.2) is None


@pytest.mark.parametrize(
    ("payload", "event"),
    [
        (b"not json", "nats.unreadable"),
        (b"{}", "nats.unreadable"),
        (b'{"op_id": "another"}', "nats.foreign"),
        (b'{"op_id": "OP", "node_id": "another"}', "nats.foreign"),
    ],
    ids=["not JSON", "no op_id", "foreign op_id", "foreign node"],
)
@pytest.mark.parametrize("kind", ["progress", "outcome"])
async def test_invalid_report_is_dropped_with_one_log_line(hub, start_node, node_id, op_id, payload, event, kind):
    """S41: malformed."""
    bus = await start_node(node_id)
    subject = {"progress": subjects.progress, "outcome": subjects.outcome}[kind](node_id, op_id)
    with structlog.testing.capture_logs() as lines:
        async with hub.attach(node_id, op_id) as attached:
            for said in (payload.replace(b"OP", op_id.encode()), Outcome(op_id=op_id, node_id=node_id).encode()):
                envelope = bus.seal(Signed.OUTCOME, node_id, said)
                await bus.publish(subject, envelope if kind == "outcome" else said)
            assert await attached.next(LONG) is not None
            assert await attached.next(0.05) is None
    assert [line["event"] for line in lines if line["event"].startswith("nats.")] == [event]


async def test_reconnect_wakes_followers(private_nats: NatsFactory, node_id, op_id):
    server = await private_nats()
    control = await connect_control(server.url, server.issuer, keys=server.issuer, name="test")
    hub = ReportHub(control)
    await hub.start()
    async with hub.attach(node_id, op_id) as attached:
        waiting = asyncio.create_task(attached.next(600))
        await asyncio.sleep(0)
        await server.kill()
        await server.restart()
        assert await asyncio.wait_for(waiting, 30) is None
    await control.close()

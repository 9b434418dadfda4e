"""Heartbeats are collected and delivered in batches."""

import asyncio
from collections.abc import Callable, Iterator

import structlog.testing

from nodesmith.bus.connection import Bus
from nodesmith.bus.heartbeats import HeartbeatSink, send_heartbeats
from nodesmith.bus.signed_messages import Signed
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.errors import ServiceUnavailable
from tests.agent.waiting import until
from tests.bus.conftest import StartNode


class Ledger:
    """Takes batches; fails on demand."""

    def __init__(self) -> None:
        self.batches: asyncio.Queue[list[Heartbeat]] = asyncio.Queue()
        self.failures = 0

    async def take(self, batch: list[Heartbeat]) -> None:
        if self.failures:
            self.failures -= 1
            raise ServiceUnavailable("The database is away.")
        self.batches.put_nowait(batch)

    async def until(self, wanted: Callable[[list[Heartbeat]], object]) -> list[Heartbeat]:
        """The first batch for which `wanted` holds."""
        async with asyncio.timeout(10):
            while True:
                batch = await self.batches.get()
                if wanted(batch):
                    return batch


async def beat_for(bus: Bus, node_id: str) -> None:
    number = 0

    async def beat() -> Heartbeat:
        nonlocal number
        number += 1
        return Heartbeat(node_id=node_id, seq=number, open_ops=["op-1"])

    await send_heartbeats(bus, beat, every=0.01)


async def beat_once(bus: Bus, heartbeat: Heartbeat) -> None:
    envelope = bus.seal(Signed.HEARTBEAT, heartbeat.node_id, heartbeat.encode())
    await bus.publish(subjects.heartbeat(heartbeat.node_id), envelope)


async def test_many_heartbeats_become_one_entry_a_node(control, start_node: StartNode, node_id):
    ledger, stop = Ledger(), asyncio.Event()
    running = asyncio.create_task(HeartbeatSink(control, ledger.take, every=0.2).run(stop))
    beating = asyncio.create_task(beat_for(await start_node(node_id), node_id))
    batch = await ledger.until(lambda batch: batch and batch[-1].seq > 5)
    assert [(each.node_id, each.open_ops) for each in batch] == [(node_id, ["op-1"])]
    beating.cancel()
    stop.set()
    await running


async def test_empty_batch_is_delivered_too(control):
    """That the sink listens is news: silence of the nodes counts only while somebody hears them."""
    ledger, stop = Ledger(), asyncio.Event()
    running = asyncio.create_task(HeartbeatSink(control, ledger.take, every=0.02).run(stop))
    assert await ledger.until(lambda batch: not batch) == []
    stop.set()
    await running


async def test_failed_batch_is_delivered_again(control, start_node: StartNode, node_id):
    ledger, stop = Ledger(), asyncio.Event()
    ledger.failures = 1_000_000
    running = asyncio.create_task(HeartbeatSink(control, ledger.take, every=0.02).run(stop))
    bus = await start_node(node_id)
    with structlog.testing.capture_logs():
        await beat_once(bus, Heartbeat(node_id=node_id, seq=1))
        await bus.settle()
        await control.settle()
        ledger.failures = 1
        assert [each.seq for each in await ledger.until(bool)] == [1]
    stop.set()
    await running


async def test_heartbeat_that_cannot_be_stored_costs_no_other_node_its_heartbeat(control, start_node: StartNode):
    """Whatever one node manages to send: the others stay alive."""
    stop, stored = asyncio.Event(), set[str]()
    gate = asyncio.Event()

    async def take(batch: list[Heartbeat]) -> None:
        await gate.wait()
        if any(each.node_id == "hostile" for each in batch):
            raise OverflowError("date value out of range")
        stored.update(each.node_id for each in batch)

    running = asyncio.create_task(HeartbeatSink(control, take, every=0.02).run(stop))
    with structlog.testing.capture_logs():
        for name in ("hostile", "one", "another"):
            await beat_once(bus := await start_node(name), Heartbeat(node_id=name, seq=1))
            await bus.settle()
        await control.settle()
        gate.set()
        await until(lambda: stored == {"one", "another"})
    stop.set()
    await running


async def test_heartbeat_for_another_node_is_dropped_with_one_log_line(control, start_node: StartNode, node_id):
    ledger, stop = Ledger(), asyncio.Event()
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(HeartbeatSink(control, ledger.take, every=0.02).run(stop))
        bus = await start_node(node_id)
        for said in (Heartbeat(node_id="somebody-else").encode(), b"not json", Heartbeat(node_id=node_id).encode()):
            await bus.publish(subjects.heartbeat(node_id), bus.seal(Signed.HEARTBEAT, node_id, said))
        batch = await ledger.until(bool)
    assert [each.node_id for each in batch] == [node_id]
    dropped = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert dropped == ["nats.foreign", "nats.unreadable"]
    stop.set()
    await running


async def test_two_sinks_share_the_heartbeats(control, nats_server, start_node: StartNode, node_id):
    """A queue group: each heartbeat is written once."""
    one, other, stop = Ledger(), Ledger(), asyncio.Event()
    sinks = [asyncio.create_task(HeartbeatSink(control, ledger.take, every=0.02).run(stop)) for ledger in (one, other)]
    bus = await start_node(node_id)
    await control.settle()
    for number in range(100):
        await beat_once(bus, Heartbeat(node_id=node_id, seq=number))
    await bus.settle()
    last = await asyncio.wait_for(_either(one, other, 99), 10)
    assert last == 99
    stop.set()
    await asyncio.gather(*sinks)
    seen = [each.seq for ledger in (one, other) for batch in _drained(ledger) for each in batch]
    assert len(seen) == len(set(seen))


async def _either(one: Ledger, other: Ledger, seq: int) -> int:
    tasks = [asyncio.create_task(ledger.until(lambda batch: batch and batch[0].seq == seq)) for ledger in (one, other)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return done.pop().result()[0].seq


def _drained(ledger: Ledger) -> Iterator[list[Heartbeat]]:
    while not ledger.batches.empty():
        yield ledger.batches.get_nowait()


async def test_heartbeats_after_the_first_are_delivered_soon(control, start_node: StartNode, node_id):
    """A fleet that starts together is heard together: the second is handed on long before the period is over."""
    ledger, stop = Ledger(), asyncio.Event()
    running = asyncio.create_task(HeartbeatSink(control, ledger.take, every=16).run(stop))
    bus = await start_node(node_id)
    for number in (1, 2):
        await beat_once(bus, Heartbeat(node_id=node_id, seq=number))
        assert [each.seq for each in await ledger.until(bool)] == [number]
    stop.set()
    await running

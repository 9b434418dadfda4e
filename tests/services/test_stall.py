"""A stall or restart of the control plane sets no node offline; uses the real sink, paused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from nodesmith.bus.connection import Bus, connect_control, node_bus
from nodesmith.bus.heartbeats import HeartbeatSink, send_heartbeats
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.node import NodeStatus
from nodesmith.services.nodes.identity_claims import DuplicateIdentities
from nodesmith.services.nodes.liveness import Liveness
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.nodes.lifecycle import NodeLifecycle
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from tests.deadlines import HANGS_S
from tests.fakes.node_link import SimulatedLink, SimulatedPresence
from tests.servers import NatsForTests
from tests.services.conftest import Join
from tests.services.test_liveness import RecordedWakes
from tests.store.clock import SetClock

HOUR = timedelta(hours=1)


@pytest.fixture
async def control(nats_server: NatsForTests) -> AsyncIterator[Bus]:
    bus = await connect_control(nats_server.url, nats_server.issuer, keys=nats_server.issuer, name="test")
    yield bus
    await bus.close()


class ControlPlane:
    """A worker's heartbeat sink that can be paused, with a clock that the test moves."""

    def __init__(self, bus: Bus, database: Database) -> None:
        self.clock = SetClock()
        self.nodes = Nodes(database, clock=self.clock)
        self._bus = bus
        duplicates = DuplicateIdentities(NodeLifecycle(database), SimulatedPresence())
        operations, inventories = OperationTable(database), InventoryTable(database)
        self._liveness = Liveness(
            self.nodes, operations, RecordedWakes(), SimulatedLink(), duplicates, inventories, self.clock
        )
        self._rounds: asyncio.Queue[int] = asyncio.Queue()

    async def _take(self, beats: list[Heartbeat]) -> None:
        await self._liveness.process(beats)
        self._rounds.put_nowait(len(beats))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        running = asyncio.create_task(HeartbeatSink(self._bus, self._take, every=0.01).run(stop))
        try:
            yield
        finally:
            stop.set()
            await running

    async def round(self, *, with_beats: bool = False) -> None:
        """Wait until the sink has started and finished one more hand-over; the current one may have started before."""
        while not self._rounds.empty():
            self._rounds.get_nowait()
        async with asyncio.timeout(HANGS_S):
            await self._rounds.get()
            await self._rounds.get()
            while with_beats and not await self._rounds.get():
                pass

    async def status(self, node_id: str) -> NodeStatus:
        seen = await self.nodes.find(node_id)
        assert seen is not None
        return seen.status


async def test_paused_control_plane_sets_no_node_offline(
    control: Bus, database: Database, join: Join, nats_server: NatsForTests
) -> None:
    """H5, H39: neither while it is paused, nor in the minute after; then silence counts again."""
    node = await join()
    plane = ControlPlane(control, database)
    bus = node_bus(nats_server.url, node.id, lambda: nats_server.issuer.node_credential(node.id, lifetime=HOUR))
    bus.start()

    async def beat() -> Heartbeat:
        return Heartbeat(node_id=node.id, boot_id="b1")

    beating = asyncio.create_task(send_heartbeats(bus, beat, every=0.02))
    async with plane.listening():
        await plane.round(with_beats=True)
    assert await plane.status(node.id) is NodeStatus.HEALTHY
    beating.cancel()
    await bus.close()
    plane.clock.forward(seconds=3600)
    assert await plane.status(node.id) is NodeStatus.HEALTHY, "nobody listened"
    async with plane.listening():
        await plane.round()
        assert await plane.status(node.id) is NodeStatus.HEALTHY, "it has had no time to be heard"
        for _ in range(6):
            plane.clock.forward(seconds=10)
            await plane.round()
        assert await plane.status(node.id) is NodeStatus.HEALTHY
        plane.clock.forward(seconds=1)
        await plane.round()
        assert await plane.status(node.id) is NodeStatus.OFFLINE, "now it is the node that is silent"

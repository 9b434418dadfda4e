"""Buses of the control plane and of nodes on a real NATS server."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from nodesmith.bus.connection import Bus, connect_control, node_bus
from nodesmith.domain.node import Protocol
from tests.servers import NatsForTests

StartNode = Callable[..., Awaitable[Bus]]
HOUR = timedelta(hours=1)


@pytest.fixture
async def control(nats_server: NatsForTests) -> AsyncIterator[Bus]:
    bus = await connect_control(nats_server.url, nats_server.issuer, keys=nats_server.issuer, name="test")
    yield bus
    await bus.close()


@pytest.fixture
async def start_node(nats_server: NatsForTests) -> AsyncIterator[StartNode]:
    """`bus = await start_node("n1")`: linked with that node's own credential."""
    async with AsyncExitStack() as stack:

        async def start(node_id: str, *, protocol: int = 2) -> Bus:
            bus = node_bus(
                nats_server.url,
                node_id,
                lambda: nats_server.issuer.node_credential(node_id, protocol=protocol, lifetime=HOUR),
                signs=protocol != Protocol.LOCALAI,
            )
            bus.start()
            stack.push_async_callback(bus.close)
            assert await bus.wait_up(10)
            return bus

        yield start


@pytest.fixture
def node_id() -> str:
    return str(uuid.uuid4())

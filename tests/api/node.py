"""The simulated node on NATS, with the credential that the API issued."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nodesmith.bus.commands import serve
from nodesmith.bus.connection import Bus, node_bus
from nodesmith.bus.presence import answer_presence
from nodesmith.bus.running_models import serve_models
from nodesmith.domain.node import NatsCredential
from tests.fakes.node import SimulatedNode


@asynccontextmanager
async def on_the_bus(
    node: dict[str, Any], simulated: SimulatedNode | None = None, *, boot_id: str = ""
) -> AsyncIterator[Bus]:
    credential = NatsCredential(node["nats_jwt"], node["nats_user_seed"], node["expires_at"])
    bus = node_bus(node["nats_url"], node["id"], lambda: credential, signs="nats_key" in node)
    handlers = simulated or SimulatedNode()
    bus.start()
    try:
        assert await bus.wait_up(10)
        await serve(bus, node["id"], handlers)
        await serve_models(bus, node["id"], handlers)
        await answer_presence(bus, node["id"], boot_id)
        yield bus
    finally:
        await bus.close()

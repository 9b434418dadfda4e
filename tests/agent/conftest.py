"""Fixtures: a web server, the control plane's side of NATS, and agents."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from nodesmith.bus.commands import NodeClient
from nodesmith.bus.connection import connect_control
from nodesmith.bus.reports import ReportHub
from tests.agent import web
from tests.agent.fetching import Fetcher
from tests.agent.nodes import Node, StartAgent, agent_in_process
from tests.agent.web import Web
from tests.servers import NatsForTests
from tests.stack.disks import small_disk


@pytest.fixture
def site() -> Iterator[Web]:
    """A web server for one test."""
    with web.running() as site:
        yield site


@pytest.fixture
def control_plane(site: Web, nats_server: NatsForTests) -> Web:
    """A web server with the registration API, which issues credentials for the shared NATS server."""
    site.nats_url = nats_server.url
    site.issuer = nats_server.issuer
    return site


@pytest.fixture
async def control(nats_server: NatsForTests) -> AsyncIterator[NodeClient]:
    """The control plane's NATS client."""
    bus = await connect_control(nats_server.url, nats_server.issuer, keys=nats_server.issuer, name="test")
    hub = ReportHub(bus)
    await hub.start()
    yield NodeClient(bus, hub)
    await bus.close()


@pytest.fixture
async def start_agent(control_plane: Web, control: NodeClient, tmp_path: Path) -> AsyncIterator[StartAgent]:
    """`node = await start_agent()`: an in-process agent, registered and connected."""
    async with AsyncExitStack() as stack:

        async def start(name: str = "agent-1", **settings: Any) -> Node:
            node = Node(name, tmp_path / name, control_plane, control)
            await stack.enter_async_context(agent_in_process(node, settings))
            await node.linked()
            return node

        yield start


@pytest.fixture
def own_disk(tmp_path: Path) -> Iterator[Path]:
    """The home of `agent-1` on a disk of its own; on the shared one, other processes change the free space."""
    with small_disk(tmp_path / "agent-1", megabytes=500) as disk:
        yield disk.folder


@pytest.fixture
async def fetcher(tmp_path: Path, site: Web) -> AsyncIterator[Fetcher]:
    async with httpx2.AsyncClient() as http:
        fetcher = Fetcher(tmp_path / "downloads", http, site.url)
        yield fetcher
        await fetcher.close()

"""Keys over HTTP: which nodes lack the newest trust list, and how running nodes are notified."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from nats.aio.msg import Msg

from nodesmith.bus.connection import Bus, node_bus
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.node import NatsCredential
from nodesmith.store.clock import utc_now
from tests.api.station import Api
from tests.deadlines import HANGS_S
from tests.servers import NatsForTests


class Heard:
    """A node on the bus that listens to nudges."""

    def __init__(self, node: dict[str, Any], bus: Bus) -> None:
        self.node, self.bus = node, bus
        self.nudges: asyncio.Queue[bytes] = asyncio.Queue()
        self.seq = 0

    async def hear(self, message: Msg) -> None:
        self.nudges.put_nowait(message.data)

    async def beat(self, api: Api, version: int, *, ago: timedelta = timedelta()) -> None:
        """As the worker takes it in."""
        self.seq += 1
        beat = Heartbeat(node_id=self.node["id"], seq=self.seq, trust_version=version)
        await api.deps.nodes.heartbeats([beat], utc_now() - ago)


@pytest.fixture
async def heard(api: Api, nats_server: NatsForTests) -> AsyncIterator[Heard]:
    node = await api.approved_node()
    credential = NatsCredential(node["nats_jwt"], node["nats_user_seed"], node["expires_at"])
    bus = node_bus(nats_server.url, node["id"], lambda: credential)
    listening = Heard(node, bus)
    await bus.subscribe(subjects.trust(node["id"]), listening.hear)
    bus.start()
    assert await bus.wait_up(HANGS_S)
    await bus.settle()
    yield listening
    await bus.close()
    await api.http.delete(f"/api/v1/nodes/{node['id']}")


async def keys(api: Api) -> dict[str, Any]:
    answer = await api.http.get("/api/v1/keys")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_keys_name_the_nodes_that_have_an_older_list(api: Api, heard: Heard) -> None:
    name = (await api.http.get(f"/api/v1/nodes/{heard.node['id']}")).json()["name"]
    assert (await keys(api))["nodes_behind"] == {"count": 1, "names": [name]}, "it has not said which list it has"
    await heard.beat(api, api.deps.keyring.version)
    assert (await keys(api))["nodes_behind"] == {"count": 0, "names": []}
    rotated = await api.http.post("/api/v1/keys/rotate", json={"revoke": True})
    assert rotated.json()["nodes_behind"] == {"count": 1, "names": [name]}
    await heard.beat(api, api.deps.keyring.version)
    shown = (await api.http.get(f"/api/v1/nodes/{heard.node['id']}")).json()
    assert shown["trust_version"] == api.deps.keyring.version
    assert (await keys(api))["nodes_behind"]["count"] == 0


async def test_only_nodes_that_take_part_and_can_verify_are_counted(api: Api) -> None:
    waiting, worker = await api.register(), await api.approved_node(protocol=1, address="10.0.0.1:50051")
    assert (await keys(api))["nodes_behind"] == {"count": 0, "names": []}
    for node in (waiting, worker):
        await api.http.delete(f"/api/v1/nodes/{node['id']}")


async def test_rotation_notifies_running_nodes_at_once(api: Api, heard: Heard) -> None:
    await heard.beat(api, api.deps.keyring.version)
    assert (await api.http.post("/api/v1/keys/rotate", json={"revoke": True})).status_code == 200
    assert await asyncio.wait_for(heard.nudges.get(), HANGS_S) == b"", "it says nothing but that there is news"


async def test_replica_notifies_nodes_until_they_have_the_list(api: Api, heard: Heard) -> None:
    """A nudge that was lost, or keys that were replaced in the folder: the next look of any replica finds it."""
    await heard.beat(api, api.deps.keyring.version - 1)
    await api.deps.renewal.once()
    await asyncio.wait_for(heard.nudges.get(), HANGS_S)
    await heard.beat(api, api.deps.keyring.version)
    assert await api.deps.renewal.spread.once() == 0


async def test_silent_node_is_not_notified(api: Api, heard: Heard) -> None:
    await heard.beat(api, 0, ago=timedelta(minutes=5))
    assert await api.deps.renewal.spread.once() == 0

"""A node that was removed or lost its credential has no voice on the bus any more: at once, and for good."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bus.connection import Bus, node_bus
from bus.credentials import server_config
from contracts import subjects
from domain.node import NatsCredential
from runtime.settings import ControlSettings
from stack import servers
from stack.files import write_private
from stack.nats import NatsServer
from tests.api.station import Api, composed, ready, settings_for, written
from tests.servers import NatsForTests, nats

PATIENCE_S = 10


@pytest.fixture(scope="module")
async def own_nats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[NatsForTests]:
    """Of our own: it is restarted."""
    async with nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, own_nats: NatsForTests, temporal_address: str
) -> ControlSettings:
    folder, trust = tmp_path_factory.mktemp("api"), own_nats.trust
    plain = settings_for(
        folder,
        database_url=database_url,
        nats_url=own_nats.url,
        account_seed=trust.account_seed,
        temporal=temporal_address,
    )
    seeds = {
        "nats_operator_seed_file": written(folder / "operator-seed", trust.operator_seed),
        "nats_system_seed_file": written(folder / "system-seed", trust.system_seed),
    }
    return plain.model_copy(update=seeds)


@asynccontextmanager
async def linked(node: dict[str, Any], url: str) -> AsyncIterator[Bus]:
    """As a stubborn node: it tries for ever with the credential that it has."""
    credential = NatsCredential(node["nats_jwt"], node["nats_user_seed"], node["expires_at"])
    bus = node_bus(url, node["id"], lambda: credential)
    bus.start()
    try:
        yield bus
    finally:
        await bus.close()


async def refused(bus: Bus) -> bool:
    await asyncio.wait_for(bus.refused.wait(), PATIENCE_S)
    return not bus.is_up and not await bus.publish(subjects.heartbeat("any"), b"{}")


@pytest.mark.parametrize("loses", ["DELETE /api/nodes/{id}", "POST /api/nodes/{id}/reset-credential"])
async def test_a_node_loses_its_voice_with_its_credential(api: Api, own_nats: NatsForTests, loses: str) -> None:
    node, bystander = await api.approved_node(), await api.approved_node()
    async with linked(node, own_nats.url) as bus, linked(bystander, own_nats.url) as other:
        assert await bus.wait_up(PATIENCE_S)
        assert await other.wait_up(PATIENCE_S)
        verb, path = loses.format(id=node["id"]).split()
        assert (await api.http.request(verb, path)).status_code == 200
        assert await refused(bus)
        await other.settle()
        assert other.is_up
        assert not other.refused.is_set()


async def test_the_next_machine_of_that_name_is_heard_at_once(api: Api, own_nats: NatsForTests) -> None:
    """Within the same second: what is revoked is a key, not a time."""
    node = await api.approved_node()
    await api.http.post(f"/api/nodes/{node['id']}/reset-credential")
    again = await api.approved_node(name=node["name"], machine_id="m2")
    assert again["id"] == node["id"]
    async with linked(again, own_nats.url) as bus:
        assert await bus.wait_up(PATIENCE_S)


async def test_a_renewed_credential_does_not_keep_an_older_one_alive(api: Api, own_nats: NatsForTests) -> None:
    first = await api.approved_node()
    body = {"name": first["name"], "protocol": 2, "machine_id": "m1"}
    headers = {"Authorization": f"Bearer {first['api_token']}"}
    renewed = (await api.http.post("/api/node/register", json=body, headers=headers)).json()
    await api.http.delete(f"/api/nodes/{first['id']}")
    async with linked(first, own_nats.url) as old, linked(renewed, own_nats.url) as new:
        assert await refused(old)
        assert await refused(new)


async def test_what_was_revoked_while_nats_was_down_is_revoked_when_it_is_back(
    api: Api, own_nats: NatsForTests
) -> None:
    node = await api.approved_node()
    await own_nats.kill()
    assert (await api.http.delete(f"/api/nodes/{node['id']}")).status_code == 200
    await own_nats.restart()
    async with linked(node, own_nats.url) as bus:
        assert await refused(bus)


async def test_a_restarted_nats_remembers_by_itself(settings: ControlSettings, own_nats: NatsForTests) -> None:
    async with composed(settings, queue="nobody") as api:
        await ready(api)
        node = await api.approved_node()
        assert (await api.http.delete(f"/api/nodes/{node['id']}")).status_code == 200
        async with linked(node, own_nats.url) as bus:
            assert await refused(bus)
    await own_nats.kill()
    await own_nats.restart()
    async with linked(node, own_nats.url) as bus:
        assert await refused(bus)


@dataclass
class Forgetful(NatsServer):
    """As in docker-compose.yml: accounts are known from the configuration alone."""

    async def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_private(self._config, server_config(self.trust, host="127.0.0.1", port=self.port))


async def test_a_nats_that_forgets_is_told_again(
    settings: ControlSettings, own_nats: NatsForTests, tmp_path: Path
) -> None:
    await own_nats.child.stop()
    kept = own_nats.server
    forgetful = Forgetful(tmp_path, kept.port, kept.trust, tmp_path / "nats.log")
    own_nats.server = forgetful
    try:
        own_nats.child = await servers.start(forgetful)
        async with composed(settings, queue="nobody") as api:
            await ready(api)
            node = await api.approved_node()
            await api.http.delete(f"/api/nodes/{node['id']}")
            async with linked(node, own_nats.url) as bus:
                assert await refused(bus)
            await own_nats.kill()
            await own_nats.restart()
            async with linked(node, own_nats.url) as bus:
                assert await refused(bus)
    finally:
        own_nats.server = kept
        await own_nats.restart()

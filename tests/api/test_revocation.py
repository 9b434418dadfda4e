"""A node that was removed or lost its credential can no longer publish on NATS, immediately and permanently."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodesmith.bus.connection import Bus, node_bus
from nodesmith.bus.nats_credentials import server_config
from nodesmith.contracts.nats import subjects
from nodesmith.domain.node import NatsCredential
from nodesmith.runtime.settings import ControlSettings
from nodesmith.stack.files import write_private
from nodesmith.stack.servers import embedded
from nodesmith.stack.servers.nats import NatsServer
from tests.api.station import Api, a_nats_key, composed, ready, settings_for, written
from tests.servers import NatsForTests, nats

PATIENCE_S = 60


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


@pytest.mark.parametrize("loses", ["DELETE /api/v1/nodes/{id}", "POST /api/v1/nodes/{id}/reset-credential"])
async def test_node_cannot_publish_after_its_credential_is_revoked(
    api: Api, own_nats: NatsForTests, loses: str
) -> None:
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


async def test_next_machine_of_that_name_can_publish_at_once(api: Api, own_nats: NatsForTests) -> None:
    """Within the same second: what is revoked is a key, not a time."""
    node = await api.approved_node()
    await api.http.post(f"/api/v1/nodes/{node['id']}/reset-credential")
    again = await api.approved_node(name=node["name"], machine_id="m2")
    assert again["id"] == node["id"]
    async with linked(again, own_nats.url) as bus:
        assert await bus.wait_up(PATIENCE_S)


async def test_a_renewed_credential_does_not_keep_an_older_one_alive(api: Api, own_nats: NatsForTests) -> None:
    first = await api.approved_node()
    body = {"name": first["name"], "protocol": 2, "machine_id": "m1", "nats_key": first["nats_key"]}
    headers = {"Authorization": f"Bearer {first['api_token']}"}
    renewed = {**first, **(await api.http.post("/api/node/register", json=body, headers=headers)).json()}
    assert renewed["nats_jwt"] != first["nats_jwt"]
    await api.http.delete(f"/api/v1/nodes/{first['id']}")
    async with linked(first, own_nats.url) as old, linked(renewed, own_nats.url) as new:
        assert await refused(old)
        assert await refused(new)


async def test_new_key_revokes_the_old_one(api: Api, own_nats: NatsForTests) -> None:
    """A machine that was set up anew: a copy of its old identity is not heard any more."""
    first = await api.approved_node()
    async with linked(first, own_nats.url) as old:
        assert await old.wait_up(PATIENCE_S)
        body = {"name": first["name"], "protocol": 2, "machine_id": "m1", "nats_key": a_nats_key()}
        headers = {"Authorization": f"Bearer {first['api_token']}"}
        assert (await api.http.post("/api/node/register", json=body, headers=headers)).status_code == 201
        assert await refused(old)


async def test_revocation_during_a_nats_outage_takes_effect_after_it(api: Api, own_nats: NatsForTests) -> None:
    node = await api.approved_node()
    await own_nats.kill()
    assert (await api.http.delete(f"/api/v1/nodes/{node['id']}")).status_code == 200
    await own_nats.restart()
    async with linked(node, own_nats.url) as bus:
        assert await refused(bus)


async def test_restarted_nats_keeps_revocations(settings: ControlSettings, own_nats: NatsForTests) -> None:
    async with composed(settings, queue="nobody") as api:
        await ready(api)
        node = await api.approved_node()
        assert (await api.http.delete(f"/api/v1/nodes/{node['id']}")).status_code == 200
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


async def test_nats_without_stored_revocations_gets_them_again(
    settings: ControlSettings, own_nats: NatsForTests, tmp_path: Path
) -> None:
    await own_nats.child.stop()
    kept = own_nats.server
    forgetful = Forgetful(tmp_path, kept.port, kept.trust, tmp_path / "nats.log")
    own_nats.server = forgetful
    try:
        own_nats.child = await embedded.start(forgetful)
        async with composed(settings, queue="nobody") as api:
            await ready(api)
            node = await api.approved_node()
            await api.http.delete(f"/api/v1/nodes/{node['id']}")
            async with linked(node, own_nats.url) as bus:
                assert await refused(bus)
            await own_nats.kill()
            await own_nats.restart()
            async with linked(node, own_nats.url) as bus:
                assert await refused(bus)
    finally:
        own_nats.server = kept
        await own_nats.restart()

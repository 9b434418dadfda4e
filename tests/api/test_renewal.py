"""A running API replica renews orders and rotates keys automatically."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from nodesmith.api import order_renewal
from nodesmith.api.order_renewal import OrderRenewal
from nodesmith.runtime.keyring import KEY_LIFETIME, Keyring, create_keys, now_ms
from nodesmith.services.operations.orders import OrderRenewals
from nodesmith.store.clock import utc_now
from tests.api.station import Api, until

DAY_MS = timedelta(days=1) // timedelta(milliseconds=1)


async def installing(api: Api) -> str:
    node = await api.approved_node()
    asked = {"backend": "echo"}
    accepted = await api.http.post("/api/v1/operations", json={"kind": "install", "node": node["id"], **asked})
    assert accepted.status_code == 202, accepted.text
    return str(accepted.json()["op_id"])


def looking_ahead(kept: OrderRenewal, by: timedelta) -> OrderRenewal:
    """As the replica is after so long."""
    later: OrderRenewals = replace(kept.renewal, clock=lambda: utc_now() + by)
    return replace(kept, renewal=later)


async def test_running_replica_renews_the_orders_of_open_operations(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = api.deps.admission.orders
    op_id = await installing(api)
    before = await orders.read(op_id)
    assert before is not None
    monkeypatch.setattr(order_renewal, "EVERY_S", 0.01)
    running = looking_ahead(api.deps.renewal, timedelta(hours=13))
    task = asyncio.create_task(running.run())
    try:
        after = await until(lambda: orders.read(op_id), lambda order: order is not None and order.exp > before.exp)
    finally:
        task.cancel()
    assert after is not None
    assert after == before.model_copy(update={"exp": after.exp})


async def test_running_replica_replaces_a_key_that_ends_soon(api: Api, tmp_path: Path) -> None:
    create_keys(tmp_path, now=lambda: now_ms() - KEY_LIFETIME // timedelta(milliseconds=1) + DAY_MS)
    keyring = Keyring.opened(tmp_path)
    old = keyring.signing_kid
    kept: OrderRenewal = replace(api.deps.renewal, keyring=keyring)
    await kept.once()
    assert (keyring.version, keyring.signing_kid != old) == (2, True)
    await kept.once()
    assert keyring.version == 2

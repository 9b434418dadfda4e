"""Batches and the hold, end to end."""

import asyncio
from typing import Any

import pytest

from nodesmith.domain.operation import Reason, State
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.e2e.test_install import MB, unique

NODES = ["agent-1", "agent-2", "agent-3"]


async def batch_ended(fleet: Fleet, batch_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            batch: dict[str, Any] = (await fleet.http.get(f"/api/v1/batches/{batch_id}")).json()
            if batch["ended_at"]:
                return batch
            await asyncio.sleep(0.1)


async def start(fleet: Fleet, **body: object) -> str:
    answer = await fleet.http.post("/api/v1/batches", json=body)
    assert answer.status_code == 202, answer.text
    batch_id: str = answer.json()["batch_id"]
    return batch_id


async def test_install_upgrade_rollback_and_removal_on_all_nodes(fleet: Fleet, source: SlowSource) -> None:
    """S3: each node gets one operation and reports its result; a removal where it is not installed does nothing."""
    name, first = unique("batch"), package(MB // 8)
    body = offer(source, name, first)
    planned = (await fleet.http.post("/api/v1/batches/plan", json={**body, "nodes": NODES})).json()
    assert [(member["node_name"], member["action"]) for member in planned["members"]] == [(n, "install") for n in NODES]
    installed = await batch_ended(fleet, await start(fleet, **body, nodes=NODES[:2]))
    assert installed["counts"] == {"succeeded": 2}
    await asyncio.gather(*(fleet.http.post(f"/api/v1/nodes/{node}/inventory/refresh") for node in NODES))

    second = package(MB // 8)
    upgrade = {**offer(source, name, second), "kind": "upgrade", "nodes": NODES}
    upgraded = await batch_ended(fleet, await start(fleet, **upgrade))
    assert upgraded["counts"] == {"succeeded": 2, "skipped": 1}, "only nodes that have it get an operation"
    assert fleet.noise_on_disk("agent-1", name) == second.noise_sha256

    rolled_back = await batch_ended(fleet, await start(fleet, kind="rollback", backend=name, nodes=NODES[:2]))
    assert rolled_back["counts"] == {"succeeded": 2}
    assert fleet.noise_on_disk("agent-2", name) == first.noise_sha256

    removed = await batch_ended(fleet, await start(fleet, kind="remove", backend=name, nodes=NODES))
    assert removed["counts"] == {"succeeded": 2, "nothing_to_do": 1}
    assert not fleet.live("agent-1", name).exists()
    job = (await fleet.http.get(f"/api/backends/job/{removed['batch_id']}")).json()
    assert (job["completed"], job["deletion"]) == (True, True)


async def test_hold_stops_dispatch_until_it_is_released(fleet: Fleet) -> None:
    held = (await fleet.http.put("/api/v1/hold", json={"reason": "release freeze"})).json()
    assert (held["held"], held["reason"]) == (True, "release freeze")
    try:
        op_id = await fleet.accepted("agent-1", backend="echo", force=True)
        waiting = await fleet.in_state(op_id, State.WAITING)
        assert (waiting["reason"], waiting["dispatched_at"]) == (Reason.HELD, None)
        assert "release freeze" in waiting["message"]
    finally:
        await fleet.http.delete("/api/v1/hold")
    assert (await fleet.ended(op_id))["state"] == State.SUCCEEDED


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"backend": "echo"}, "exactly one of nodes, selector and everywhere"),
        ({"backend": "echo", "nodes": ["nobody"]}, "nobody"),
        ({"backend": "echo", "selector": "rack=none"}, "matches no node"),
        ({"backend": "echo", "selector": "rack~~none"}, "selector"),
        ({"backend": "nope", "everywhere": True}, "nope"),
        ({"kind": "upgrade", "backend": "echo", "version": "99", "everywhere": True}, "99"),
        ({"backend": "echo", "everywhere": True, "max_parallel": -1}, "max_parallel"),
    ],
)
async def test_bad_batches_are_refused_and_nothing_is_started(fleet: Fleet, body: dict[str, Any], says: str) -> None:
    before = (await fleet.http.get("/api/v1/batches?limit=1")).json()["items"]
    refused = await fleet.http.post("/api/v1/batches", json=body)
    assert 400 <= refused.status_code < 500
    assert refused.headers["content-type"] == "application/problem+json"
    assert says in refused.text
    assert (await fleet.http.get("/api/v1/batches?limit=1")).json()["items"] == before


async def test_retry_of_a_batch_goes_to_those_that_failed(fleet: Fleet, source: SlowSource) -> None:
    """S7: only the failed ones are retried."""
    name, good = unique("redriven"), package(MB // 8)
    body = {**offer(source, name, good), "sha256": "0" * 64}
    failed = await batch_ended(fleet, await start(fleet, **body, nodes=["agent-1"], max_failures=1))
    assert failed["counts"] == {"failed": 1}
    again = await fleet.http.post(f"/api/v1/batches/{failed['batch_id']}/retry")
    assert again.status_code == 202, again.text
    assert list(again.json()["operations"]) == ["agent-1"]
    redriven = await batch_ended(fleet, again.json()["batch_id"])
    assert redriven["retry_of"] == failed["batch_id"]

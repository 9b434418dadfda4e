"""The life of a node over HTTP: what it says of itself, with LocalAI's paths, and what people decide."""

import secrets
from datetime import UTC, datetime
from typing import Any

import pytest

from nodesmith.contracts.nats.presence import Heartbeat, StopOrder, StopWhy
from tests.api.localai.test_nodes import node_view
from tests.api.node import on_the_bus
from tests.api.station import REGISTRATION_TOKEN, Api, a_nats_key, bearer, until
from tests.fakes.node import SimulatedNode

AS_WORKER = bearer(REGISTRATION_TOKEN)


async def a_worker(api: Api) -> dict[str, Any]:
    """A LocalAI worker, approved: it has the shared token only."""
    return await api.approved_node(protocol=1, machine_id="", address="10.0.0.1:50051")


@pytest.mark.parametrize(
    "sent",
    [
        {"node_type": ""},
        dict.fromkeys(("node_type", "labels", "vram_budget", "http_address", "max_replicas_per_model", "token")),
        dict.fromkeys(("total_vram", "available_vram", "gpu_vendor", "capability", "machine_id", "protocol")),
    ],
)
async def test_what_a_localai_worker_leaves_empty_is_left_out(api: Api, sent: dict[str, Any]) -> None:
    """To a Go program null, nothing and the empty text are the same."""
    body = {"name": f"worker-{secrets.token_hex(3)}", "address": "10.0.0.1:50051", **sent}
    answer = await api.http.post("/api/node/register", json=body, headers=AS_WORKER)
    assert answer.status_code == 201, answer.text
    assert (answer.json()["node_type"], answer.json()["status"]) == ("backend", "pending")


# what a LocalAI worker does on SIGTERM ------------------------------------------------------------------------


async def test_a_localai_worker_drains_and_deregisters_itself_and_comes_back(api: Api) -> None:
    """R14c, R18, H5: exactly 200, an array of models, the row kept; registering again needs no approval."""
    worker = await a_worker(api)
    path = f"/api/node/{worker['id']}"
    drained = await api.http.post(f"{path}/drain", headers=AS_WORKER)
    assert (drained.status_code, drained.json()) == (200, {"message": "node set to draining"})
    assert (await node_view(api, worker["id"]))["status"] == "draining"
    models = await api.http.get(f"{path}/models", headers=AS_WORKER)
    assert (models.status_code, models.json()) == (200, [])
    gone = await api.http.post(f"{path}/deregister", headers=AS_WORKER)
    assert (gone.status_code, gone.json()) == (200, {"message": "node set to offline"})
    await api.http.post(f"{path}/heartbeat", headers=AS_WORKER)
    assert (await node_view(api, worker["id"]))["status"] == "offline"
    body = {"name": worker["name"], "address": "10.0.0.1:50051", "labels": None, "token": REGISTRATION_TOKEN}
    back = await api.http.post("/api/node/register", json=body, headers=AS_WORKER)
    assert (back.status_code, back.json()["id"], back.json()["status"]) == (201, worker["id"], "healthy")


async def test_a_node_may_stay_after_all(api: Api) -> None:
    worker = await a_worker(api)
    await api.http.delete(f"/api/node/{worker['id']}", headers=AS_WORKER)
    assert (await node_view(api, worker["id"]))["left_at"]
    stays = await api.http.post(f"/api/node/{worker['id']}/resume", headers=AS_WORKER)
    assert (stays.status_code, stays.json()) == (200, {"message": "node resumed"})
    assert (await node_view(api, worker["id"]))["status"] == "healthy"


@pytest.mark.parametrize("approved", [True, False])
async def test_a_nodes_resume_undoes_no_decision_of_an_admin(api: Api, *, approved: bool) -> None:
    """H1, H3."""
    node = await (api.approved_node() if approved else api.register())
    await api.http.post(f"/api/nodes/{node['id']}/drain")
    answer = await api.http.post(f"/api/node/{node['id']}/resume", headers=bearer(node["api_token"]))
    assert answer.status_code == 200
    view = await node_view(api, node["id"])
    assert (view["status"], bool(view["drained_at"])) == ("draining" if approved else "pending", True)


ROUTES: list[tuple[str, str]] = [
    ("POST", "/drain"),
    ("POST", "/resume"),
    ("POST", "/deregister"),
    ("POST", "/heartbeat"),
    ("GET", "/models"),
    ("DELETE", ""),
]


@pytest.mark.parametrize(("verb", "path"), ROUTES)
async def test_node_cannot_act_for_another_node(api: Api, verb: str, path: str) -> None:
    """H3, promise 7: not with another node's credential, not with the shared token, not with none."""
    mine, other, worker = await api.approved_node(), await api.approved_node(), await a_worker(api)
    before = [await node_view(api, each["id"]) for each in (other, worker)]
    attempts = [
        (other["id"], mine["api_token"]),
        (other["id"], REGISTRATION_TOKEN),
        (other["name"], REGISTRATION_TOKEN),
        (worker["id"], mine["api_token"]),
        (worker["name"], REGISTRATION_TOKEN),
        (other["id"], ""),
        ("nobody", mine["api_token"]),
    ]
    for target, token in attempts:
        headers = bearer(token) if token else {"Authorization": ""}
        answer = await api.http.request(verb, f"/api/node/{target}{path}", headers=headers)
        assert answer.status_code == 401, (target, token)
        assert isinstance(answer.json()["error"], str)
    assert [await node_view(api, each["id"]) for each in (other, worker)] == before


@pytest.mark.parametrize(("verb", "path"), ROUTES)
async def test_a_node_that_is_not_there_is_404(api: Api, verb: str, path: str) -> None:
    answer = await api.http.request(verb, f"/api/node/{secrets.token_hex(8)}{path}", headers=AS_WORKER)
    assert answer.status_code == 404
    assert answer.json()["error"] == {"code": 404, "message": answer.json()["detail"], "type": "node_error"}


# what people decide -------------------------------------------------------------------------------------------


async def test_drain_resume_and_remove_answer_as_localai_does(api: Api) -> None:
    """R22, R29."""
    node = await a_worker(api)
    drained = await api.http.post(f"/api/nodes/{node['name']}/drain", json={"reason": "new disks"})
    assert (drained.status_code, drained.json()) == (200, {"message": "node set to draining"})
    assert (await node_view(api, node["id"]))["status"] == "draining"
    resumed = await api.http.post(f"/api/nodes/{node['id']}/resume")
    assert (resumed.status_code, resumed.json()) == (200, {"message": "node resumed"})
    assert (await node_view(api, node["id"]))["status"] == "healthy"
    removed = await api.http.delete(f"/api/nodes/{node['id']}?reason=scrapped")
    assert (removed.status_code, removed.json()) == (200, {"message": "node deregistered"})
    assert (await api.http.get(f"/api/nodes/{node['id']}")).status_code == 404
    for verb, path in [("POST", "/drain"), ("POST", "/resume"), ("DELETE", "")]:
        answer = await api.http.request(verb, f"/api/nodes/{node['id']}{path}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "node_error")
    trail = (await api.http.get("/api/v1/audit", params={"target": node["name"]})).json()
    assert [each["reason"] for each in trail["items"]][:3] == ["scrapped", "", "new disks"]


async def test_drain_resume_and_remove_answer_with_the_status(api: Api) -> None:
    node = await a_worker(api)
    path = f"/api/v1/nodes/{node['id']}"
    drained = await api.http.post(f"/api/v1/nodes/{node['name']}/drain", json={"reason": "new disks"})
    assert drained.json() == {"message": "node set to draining", "status": "draining", "cancelled": []}
    resumed = await api.http.post(f"{path}/resume")
    assert (resumed.json()["message"], resumed.json()["status"]) == ("node resumed", "healthy")
    removed = await api.http.delete(f"{path}?reason=scrapped")
    assert (removed.status_code, removed.json()["message"]) == (200, "node deregistered")
    for verb, action in [("POST", "/drain"), ("POST", "/resume"), ("POST", "/reset-credential"), ("DELETE", "")]:
        answer = await api.http.request(verb, f"{path}{action}")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_node")
        assert "error" not in answer.json()
    trail = (await api.http.get("/api/v1/audit", params={"target": node["name"]})).json()
    assert [each["reason"] for each in trail["items"]][:3] == ["scrapped", "", "new disks"]


async def test_unknown_drain_policy_is_refused(api: Api) -> None:
    node = await api.approved_node()
    answer = await api.http.post(f"/api/v1/nodes/{node['id']}/drain?operations=explode")
    assert (answer.status_code, answer.json()["facts"]) == (400, {"field": "operations"})
    assert (await node_view(api, node["id"]))["drained_at"] is None


async def test_a_drained_node_takes_no_install_unless_on_purpose(api: Api) -> None:
    node = await api.approved_node()
    asked = {"kind": "install", "node": node["id"]}
    waiting = await api.http.post("/api/v1/operations", json={**asked, "backend": "echo"})
    drained = await api.http.post(f"/api/v1/nodes/{node['id']}/drain?operations=cancel", json={"reason": "new disks"})
    assert drained.json()["cancelled"] == [waiting.json()["op_id"]]
    body = {**asked, "uri": "https://example.test/other.tar.gz", "sha256": "0" * 64}
    refused = await api.http.post("/api/v1/operations", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "node_drained")
    taken = await api.http.post("/api/v1/operations", json={**body, "on_drained": True})
    assert taken.status_code == 202


async def received(node: SimulatedNode) -> list[StopOrder]:
    return node.stop_orders


async def test_removed_agent_is_notified_over_nats_and_at_registration(api: Api) -> None:
    """H8, H10."""
    node = await api.approved_node(boot_id="b1")
    simulated = SimulatedNode()
    async with on_the_bus(node, simulated):
        await api.http.delete(f"/api/v1/nodes/{node['id']}")
        await until(lambda: received(simulated), bool)
    assert [order.why for order in simulated.stop_orders] == [StopWhy.REMOVED]
    body = {"name": node["name"], "protocol": 2, "machine_id": "m1", "boot_id": "b1", "nats_key": node["nats_key"]}
    answer = await api.http.post("/api/node/register", json=body, headers=bearer(node["api_token"]))
    assert (answer.status_code, answer.json()["code"]) == (410, "node_removed")


async def test_a_removed_localai_worker_that_heartbeats_over_http_is_stopped_over_nats(api: Api) -> None:
    """H8: it ignores the 404, so it gets a stop order over NATS."""
    node = await a_worker(api)
    await api.http.delete(f"/api/v1/nodes/{node['id']}")
    simulated = SimulatedNode()
    async with on_the_bus(node, simulated):
        answer = await api.http.post(f"/api/node/{node['id']}/heartbeat", headers=AS_WORKER)
        assert answer.status_code == 404
        await until(lambda: received(simulated), bool)


async def test_copy_of_a_running_agent_is_refused_with_a_remedy(api: Api) -> None:
    node = await api.approved_node(boot_id="first")
    copy = {"name": node["name"], "protocol": 2, "machine_id": "m1", "boot_id": "copy", "nats_key": node["nats_key"]}
    async with on_the_bus(node, boot_id="first"):
        answer = await api.http.post("/api/node/register", json=copy, headers=bearer(node["api_token"]))
    assert (answer.status_code, answer.json()["code"]) == (409, "identity_in_use")
    assert "identity.json" in answer.json()["remedy"]
    assert (await node_view(api, node["id"]))["rival_seen_at"]
    await api.deps.nodes.heartbeats([Heartbeat(node_id=node["id"], boot_id="first")], datetime.now(UTC))
    after = await api.http.post("/api/node/register", json=copy, headers=bearer(node["api_token"]))
    assert after.status_code == 201


async def test_a_reset_credential_frees_the_name(api: Api) -> None:
    """R15."""
    node = await api.approved_node()
    body = {"name": node["name"], "protocol": 2, "machine_id": "m2", "nats_key": a_nats_key()}
    refused = await api.http.post("/api/node/register", json=body, headers=AS_WORKER)
    assert refused.status_code == 409
    assert f"nodes reset-credential {node['name']}" in refused.json()["detail"]
    reset = await api.http.post(f"/api/v1/nodes/{node['name']}/reset-credential", json={"reason": "board replaced"})
    assert (reset.status_code, reset.json()["status"]) == (200, "pending")
    taken = await api.http.post("/api/node/register", json=body, headers=AS_WORKER)
    assert (taken.status_code, taken.json()["id"], taken.json()["status"]) == (201, node["id"], "pending")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "x" * 256),
        ("name", "two\nlines"),
        ("name", ""),
        ("address", "x" * 513),
        ("http_address", "x" * 513),
        ("node_type", "toaster"),
        ("total_vram", -1),
        ("available_disk", 1 << 70),
        ("max_replicas_per_model", -1),
        ("max_replicas_per_model", 1 << 40),
        ("machine_id", "x" * 256),
        ("boot_id", "x" * 256),
        ("protocol", 99),
    ],
)
async def test_registration_with_bad_input_names_the_field_and_writes_nothing(
    api: Api, field: str, value: object
) -> None:
    """R1."""
    name = f"bad-{secrets.token_hex(4)}"
    body = {"name": name, "protocol": 2, "machine_id": "m1", "nats_key": a_nats_key(), field: value}
    answer = await api.http.post("/api/node/register", json=body, headers=AS_WORKER)
    assert (answer.status_code, answer.json()["facts"]["field"]) == (400, field)
    assert (await api.http.get(f"/api/v1/nodes/{name}")).status_code == 404

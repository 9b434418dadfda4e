"""Deployments over HTTP: deploy, diff, scale, explain, remove, calls of routers; bad requests get their reason."""

import asyncio
import secrets
from typing import Any

import pytest
from sqlalchemy import text

from nodesmith.contracts.nats.presence import Heartbeat, Resources
from nodesmith.domain.placement import Choice
from nodesmith.domain.replica import Replica
from nodesmith.domain.tick import PlannedPlacement
from nodesmith.store.clock import utc_now
from nodesmith.store.models.placing import ReplicaPlacing
from tests.api.station import Api

GIB = 2**30
DIGEST = "ab" * 32
BACKEND = "echo-lm"


@pytest.fixture(scope="module", autouse=True)
async def node(api: Api) -> dict[str, Any]:
    """A healthy node with 8 GiB of graphics memory, on which the backend is installed."""
    node = await api.approved_node(labels={"zone": "a"}, max_replicas_per_model=3)
    await beat(api, node)
    async with api.deps.nodes._database.session() as session:
        await session.execute(
            text(
                "INSERT INTO installed_backends (node_id, family, name, version, digest, uri, gallery_url, is_system,"
                " is_meta, previous_version, previous_digest, seen_at)"
                " VALUES (:id, :name, :name, '1', '', '', '', false, false, '', '', now())"
            ),
            {"id": node["id"], "name": BACKEND},
        )
    return node


async def beat(api: Api, node: dict[str, Any]) -> None:
    now = utc_now()
    resources = Resources(total_vram=8 * GIB, available_vram=8 * GIB)
    await api.deps.nodes.heartbeats([Heartbeat(node_id=node["id"], resources=resources)], now)
    await api.deps.nodes.touch_listening(now)


def named() -> str:
    return f"llama-{secrets.token_hex(3)}"


async def deploy(api: Api, name: str, **fields: Any) -> dict[str, Any]:
    answer = await api.http.put(f"/api/v1/deployments/{name}", json={"backend": BACKEND, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def load(api: Api, name: str, node: dict[str, Any]) -> Replica:
    """Place a replica and record it as loaded, as scheduler and node do."""
    deployment = await api.deps.model_service.find(name)
    placing = ReplicaPlacing(api.deps.nodes._database)
    placed = await placing.place(deployment, PlannedPlacement(name, Choice(node["id"], "", 0), 99))
    assert placed is not None
    assert await api.deps.model_service.replicas.loaded(placed.op_id, "127.0.0.1:9", 1)
    return placed


async def test_deployment_is_stored_and_shown(api: Api) -> None:
    name, file = named(), {"uri": "https://models.test/x.gguf", "sha256": DIGEST, "size": 5}
    body = {"files": [file], "arguments": ["-m", "{file}"], "environment": {"HF_TOKEN": "secret"}, "memory": "2GiB"}
    made = await deploy(api, name, **body, selector="zone=a", min_replicas=0, max_replicas=4)
    assert made["revision"] == 1
    assert made["memory"] == 2 * GIB
    assert made["files"] == [{**file, "name": "x.gguf"}]
    assert made["environment"] == ["HF_TOKEN"]
    assert "secret" not in str(made)
    shown = (await api.http.get(f"/api/v1/deployments/{name}")).json()
    assert shown == made
    assert (shown["status"], shown["replicas"]) == ("idle", [])
    listed = (await api.http.get("/api/v1/deployments")).json()["items"]
    assert name in [each["name"] for each in listed]


async def test_name_may_have_a_slash(api: Api) -> None:
    name = f"org/{named()}:q4"
    await deploy(api, name, min_replicas=0)
    for path in ("", "/explain", "/replicas"):
        answer = await api.http.get(f"/api/v1/deployments/{name}{path}")
        assert answer.status_code == 200, answer.text


async def test_changed_load_is_a_new_revision_and_scale_is_not(api: Api) -> None:
    name = named()
    await deploy(api, name, min_replicas=0)
    assert (await deploy(api, name, arguments=["-x"], min_replicas=0))["revision"] == 2
    scaled = await api.http.post(f"/api/v1/deployments/{name}/scale", json={"min_replicas": 1, "max_replicas": 3})
    assert (scaled.json()["revision"], scaled.json()["max_replicas"]) == (2, 3)
    assert scaled.json()["arguments"] == ["-x"]


async def test_diff_shows_what_would_change(api: Api) -> None:
    name, path = named(), "/api/v1/deployments/{}/diff"
    body = {"backend": BACKEND, "arguments": ["-x"], "environment": {"A": "secret"}, "min_replicas": 0}
    first = (await api.http.post(path.format(name), json=body)).json()
    assert (first["is_new"], first["revision"]) == (True, 1)
    assert (await api.http.get(f"/api/v1/deployments/{name}")).status_code == 404
    await deploy(api, name, **{key: value for key, value in body.items() if key != "backend"})
    assert (await api.http.post(path.format(name), json=body)).json()["changes"] == []
    changed = (await api.http.post(path.format(name), json={**body, "arguments": ["-y"], "max_replicas": 2})).json()
    assert changed["changes"] == [
        {"field": "arguments", "before": ["-x"], "after": ["-y"]},
        {"field": "max_replicas", "before": 1, "after": 2},
    ]
    assert changed["revision"] == 2
    assert "secret" not in str(first) + str(changed)


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"backend": "no-such-backend"}, 404, "No gallery and no node has the backend no-such-backend."),
    ({"selector": "zone=nowhere"}, 409, "No node matches the selector zone=nowhere."),
    ({"selector": "zone in"}, 400, "selector: position 8: expected `(` and a list of values"),
    ({"min_replicas": 3, "max_replicas": 2}, 400, "min_replicas (3) is above max_replicas (2)"),
    ({"min_replicas": -1}, 400, "min_replicas"),
    ({"spread_all": True, "max_replicas": 2}, 400, "spread_all: excludes min_replicas and max_replicas"),
    ({"memory": "9GiB"}, 409, "A replica needs 9.0 GiB; the largest matching node"),
    ({"memory": "lots"}, 400, "'lots' is not a size"),
    ({"memory": "80%"}, 400, "'80%' is not a size"),
    ({"files": [{"uri": "https://models.test/x"}]}, 400, "needs its SHA-256"),
    ({"files": [{"uri": "https://models.test/x", "sha256": "zz"}]}, 400, "needs its SHA-256"),
    ({"files": [{"uri": "gopher://models.test/x", "sha256": DIGEST}]}, 400, ""),
    ({"files": [{"uri": "https://m.test/x", "sha256": DIGEST, "name": "../x"}]}, 400, "not a relative file name"),
    ({"files": [{"uri": "https://m.test/x", "sha256": DIGEST}] * 2}, 400, "two files have the name x"),
    ({"environment": {"1A": "x"}}, 400, "not the name of a variable"),
    ({"ready_path": "health"}, 400, "ready_path: must begin with /"),
    ({"route_policy": "random"}, 400, "route_policy"),
    ({"balance_rel_threshold": 0.5}, 400, "balance_rel_threshold: must be 0 or at least 1"),
    ({"expected_revision": 7}, 409, "revision"),
]


@pytest.mark.parametrize(("fields", "status", "reason"), BAD, ids=[str(fields)[:60] for fields, _, _ in BAD])
async def test_bad_request_is_refused_with_its_reason(
    api: Api, fields: dict[str, Any], status: int, reason: str
) -> None:
    """A clear answer each, and nothing half done."""
    name = named()
    body = {"backend": BACKEND, "min_replicas": 0, **fields}
    answer = await api.http.put(f"/api/v1/deployments/{name}", json=body)
    assert (answer.status_code, reason in answer.json()["detail"]) == (status, True), answer.text
    assert (await api.http.get(f"/api/v1/deployments/{name}")).status_code == 404


@pytest.mark.parametrize("name", ["-x", "a b", "a//b", "a/explain", "../x", "x" * 181])
async def test_bad_name_is_refused(api: Api, name: str) -> None:
    answer = await api.http.put(f"/api/v1/deployments/{name}", json={"backend": BACKEND})
    assert answer.status_code in (400, 404, 405), answer.text


async def test_force_accepts_what_no_node_can_run_yet(api: Api) -> None:
    name = named()
    made = await deploy(api, name, selector="zone=later", memory="999GiB", force=True)
    assert made["status"] in ("waiting", "unsatisfiable")


async def test_two_deployments_of_one_name_at_once(api: Api) -> None:
    """Both are stored, one after the other; with `expected_revision` the second is refused."""
    name = named()

    async def put(argument: str, **fields: Any) -> int:
        body = {"backend": BACKEND, "arguments": [argument], "min_replicas": 0, **fields}
        return (await api.http.put(f"/api/v1/deployments/{name}", json=body)).status_code

    assert set(await asyncio.gather(put("-a"), put("-b"))) == {200}
    assert (await api.http.get(f"/api/v1/deployments/{name}")).json()["revision"] == 2
    statuses = await asyncio.gather(put("-c", expected_revision=2), put("-d", expected_revision=2))
    assert sorted(statuses) == [200, 409]


async def test_unknown_deployment_is_404(api: Api) -> None:
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/explain"),
        ("GET", "/replicas"),
        ("GET", "/load-status"),
    ):
        answer = await api.http.request(method, f"/api/v1/deployments/nobody{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_model"), path
    scaled = await api.http.post("/api/v1/deployments/nobody/scale", json={"min_replicas": 1, "max_replicas": 1})
    assert scaled.status_code == 404


async def test_explain_names_every_node(api: Api, node: dict[str, Any]) -> None:
    name, other = named(), await api.approved_node()
    await deploy(api, name, selector="zone=a", memory="4GiB", min_replicas=0)
    await beat(api, node)
    found = (await api.http.get(f"/api/v1/deployments/{name}/explain")).json()
    assert found["chosen"] == node["name"]
    verdicts = {each["node_name"]: each["verdict"] for each in found["nodes"]}
    assert verdicts[node["name"]] == "chosen"
    assert verdicts[other["name"]] == "no_match"
    assert found["actions"] == []


async def test_removed_deployment_is_gone(api: Api) -> None:
    name = named()
    await deploy(api, name, min_replicas=0)
    assert (await api.http.delete(f"/api/v1/deployments/{name}")).status_code == 200
    assert (await api.http.get(f"/api/v1/deployments/{name}")).status_code == 404


async def test_router_acquires_and_releases(api: Api, node: dict[str, Any]) -> None:
    """R76: exact counters, also in the list of nodes; a repeated release changes nothing."""
    name, holder = named(), f"router-{secrets.token_hex(3)}"
    await deploy(api, name, memory="1GiB", min_replicas=0)
    await beat(api, node)
    placed = await load(api, name, node)
    path = f"/api/v1/deployments/{name}"
    taken = await api.http.post(f"{path}/acquire", json={"holder": holder})
    assert taken.status_code == 200, taken.text
    assert taken.json().items() >= {"id": placed.id, "in_flight": 1, "address": "127.0.0.1:9"}.items()
    assert taken.json()["node_name"] == node["name"]
    for reader in (f"/api/v1/nodes/{node['id']}", f"/api/nodes/{node['id']}"):
        shown = (await api.http.get(reader)).json()
        assert (shown["model_count"], shown["in_flight_count"], shown["reserved_vram"]) == (1, 1, GIB)
    listed = (await api.http.get("/api/v1/nodes")).json()["items"]
    assert [each["model_count"] for each in listed if each["id"] == node["id"]] == [1]
    release = {"holder": holder, "replica_id": placed.id}
    assert (await api.http.post(f"{path}/release", json=release)).json() == {"released": True}
    assert (await api.http.post(f"{path}/release", json=release)).json() == {"released": False}
    await api.http.post(f"{path}/acquire", json={"holder": holder})
    assert (await api.http.put(f"/api/v1/holders/{holder}")).json()["known"]
    assert (await api.http.delete(f"/api/v1/holders/{holder}")).json()["known"]
    assert not (await api.http.put(f"/api/v1/holders/{holder}")).json()["known"]
    assert (await api.http.get(path)).json()["in_flight"] == 0


async def test_acquire_without_a_replica_asks_for_one(api: Api) -> None:
    name = named()
    await deploy(api, name, min_replicas=0)
    answer = await api.http.post(f"/api/v1/deployments/{name}/acquire", json={"holder": "r"})
    assert (answer.status_code, answer.json()["code"]) == (503, "no_replica")
    assert int(answer.headers["retry-after"]) > 0
    assert (await api.deps.model_service.find(name)).wanted_at is not None
    unknown = await api.http.post("/api/v1/deployments/nobody/acquire", json={"holder": "r"})
    assert unknown.status_code == 404


async def test_drain_preview_says_what_goes_where(api: Api, node: dict[str, Any]) -> None:
    name = named()
    await deploy(api, name, memory="1GiB", min_replicas=0)
    await beat(api, node)
    await load(api, name, node)
    found = (await api.http.get(f"/api/v1/nodes/{node['id']}/drain-preview")).json()["moves"]
    [move] = [each for each in found if each["model"] == name]
    assert move["to"] is None
    assert f"{node['name']}: it is not healthy: it is draining" in move["detail"]

"""Labels and overrides over HTTP, with LocalAI's paths and answers."""

from typing import Any

import pytest

from tests.api.station import REGISTRATION_TOKEN, Api, a_nats_key, bearer

GIB = 2**30


async def view(api: Api, node: dict[str, Any]) -> dict[str, Any]:
    return dict((await api.http.get(f"/api/nodes/{node['id']}")).json())


async def test_labels_are_read_replaced_merged_and_removed(api: Api) -> None:
    """R53-R56, H35."""
    node = await api.register(labels={"zone": "a"})
    path = f"/api/nodes/{node['name']}/labels"
    own = {"zone": "a", "node.name": node["name"], "node.replica-slots": "1"}
    assert (await api.http.get(path)).json() == own
    put = await api.http.put(path, json={"tier": "gold"})
    assert (put.status_code, put.json()) == (200, {**own, "tier": "gold"})
    patched = await api.http.patch(path, json={"example.com/team": "x", "zone": "z"})
    assert patched.json() == {**own, "tier": "gold", "example.com/team": "x", "zone": "z"}
    for key in ("example.com/team", "zone", "not-there"):
        removed = await api.http.delete(f"{path}/{key}")
        assert (removed.status_code, removed.content) == (204, b"")
    assert (await api.http.get(path)).json() == {**own, "tier": "gold"}
    assert (await view(api, node))["labels"] == {**own, "tier": "gold"}


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({"k" * 129: "x"}, "labels"),
        ({"": "x"}, "labels"),
        ({"zone": "v" * 256}, "labels"),
        ({"a b": "x"}, "labels"),
        ({"node.name": "me"}, "node.name"),
        ({"zone": 3}, "zone"),
    ],
)
async def test_labels_out_of_range_are_refused_and_nothing_is_written(
    api: Api, labels: dict[str, Any], field: str
) -> None:
    """R5."""
    node = await api.register()
    before = await view(api, node)
    for send in (api.http.put, api.http.patch):
        answer = await send(f"/api/nodes/{node['id']}/labels", json={"fine": "yes", **labels})
        assert (answer.status_code, answer.json()["facts"]["field"]) == (400, field)
        assert answer.json()["error"]["type"] == "node_error"
    assert (await view(api, node))["labels"] == before["labels"]


async def test_labels_of_an_unknown_node_are_404(api: Api) -> None:
    for answer in (
        await api.http.get("/api/nodes/nobody/labels"),
        await api.http.put("/api/nodes/nobody/labels", json={}),
        await api.http.delete("/api/nodes/nobody/labels/zone"),
        await api.http.put("/api/nodes/nobody/vram-budget", json={"value": "80%"}),
        await api.http.delete("/api/nodes/nobody/max-replicas-per-model"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_node")


async def test_max_replicas_override_is_set_and_removed(api: Api) -> None:
    """R73, R74, R90."""
    node = await api.register(max_replicas_per_model=2)
    path = f"/api/nodes/{node['id']}/max-replicas-per-model"
    answer = await api.http.put(path, json={"value": 5})
    assert (answer.status_code, answer.json()) == (200, {"max_replicas_per_model": 5})
    seen = await view(api, node)
    assert (seen["max_replicas_per_model"], seen["max_replicas_per_model_manually_set"]) == (5, True)
    assert seen["labels"]["node.replica-slots"] == "5"
    assert (await api.http.delete(path)).json() == {"reset": True}
    seen = await view(api, node)
    assert (seen["max_replicas_per_model"], seen["max_replicas_per_model_manually_set"]) == (2, False)
    for value in (0, -1, 10**9, "many"):
        refused = await api.http.put(path, json={"value": value})
        assert (refused.status_code, refused.json()["facts"]["field"]) == (400, "value")


async def test_vram_budget_override_is_set_and_removed(api: Api) -> None:
    """R90."""
    node = await api.register(total_vram=24 * GIB, available_vram=24 * GIB)
    path = f"/api/nodes/{node['id']}/vram-budget"
    for value, ceiling in (("50%", 12 * GIB), ("0.5", 12 * GIB), ("8GiB", 8 * GIB), (8 * GIB, 8 * GIB), ("", None)):
        answer = await api.http.put(path, json={"value": value})
        assert (answer.status_code, answer.json()) == (200, {"vram_budget": str(value)})
        seen = await view(api, node)
        assert (seen["vram_budget_bytes"], seen["vram_budget_manually_set"]) == (ceiling, True)
        assert seen["available_vram"] == (ceiling or 24 * GIB)
    assert (await api.http.delete(path)).json() == {"reset": True}
    assert not (await view(api, node))["vram_budget_manually_set"]
    for wrong in ("101%", "1.5", "lots", -5, 2**62, None):
        refused = await api.http.put(path, json={"value": wrong})
        assert (refused.status_code, refused.json()["facts"]["field"].partition(".")[0]) == (400, "value"), wrong


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("total_vram", -1),
        ("available_disk", 2**61),
        ("max_replicas_per_model", -1),
        ("max_replicas_per_model", 10**9),
        ("vram_budget", "120%"),
        ("labels", {"k" * 129: "x"}),
        ("labels", {"zone": "v" * 256}),
        ("gpu_vendor", "v" * 256),
    ],
)
async def test_registration_with_absurd_facts_is_refused_by_name(api: Api, field: str, value: Any) -> None:
    """R1, R5: 400 with the field named, nothing written."""
    body = {"name": f"absurd-{field}", "protocol": 2, "machine_id": "m1", "nats_key": a_nats_key(), field: value}
    answer = await api.http.post("/api/node/register", json=body, headers=bearer(REGISTRATION_TOKEN))
    assert (answer.status_code, answer.json()["facts"]["field"]) == (400, field)
    assert (await api.http.get(f"/api/nodes/{body['name']}")).status_code == 404


async def test_node_has_every_field_that_localais_clients_read(api: Api) -> None:
    """LocalAI's NodeWithExtras; its counts are always 0."""
    seen = await view(api, await api.register())
    assert set(seen) >= {
        *("id", "name", "node_type", "address", "http_address", "status", "total_vram", "available_vram"),
        *("reserved_vram", "total_ram", "available_ram", "total_disk", "available_disk", "gpu_vendor"),
        *("gpu_compute_capability", "capability", "max_replicas_per_model", "max_replicas_per_model_manually_set"),
        *("vram_budget", "vram_budget_bytes", "vram_budget_manually_set", "last_heartbeat", "created_at"),
        *("updated_at", "model_count", "in_flight_count", "labels"),
    }


@pytest.mark.parametrize("value", [True, None, [], {}])
@pytest.mark.parametrize("route", ["vram-budget", "max-replicas-per-model"])
async def test_what_is_neither_text_nor_number_is_no_value(api: Api, route: str, value: object) -> None:
    """`true` is not one byte, nor one replica."""
    node = await api.approved_node()
    answer = await api.http.put(f"/api/nodes/{node['id']}/{route}", json={"value": value})
    assert (answer.status_code, answer.json()["facts"]["field"]) == (400, "value")

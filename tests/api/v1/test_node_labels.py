"""Labels and overrides over HTTP; LocalAI's routes for the same are in `tests/api/localai/test_node_settings.py`."""

from typing import Any

import pytest

from tests.api.station import Api

GIB = 2**30


async def test_labels_are_read_replaced_merged_and_removed(api: Api) -> None:
    """R53-R56, H35."""
    node = await api.register(labels={"zone": "a"})
    path = f"/api/v1/nodes/{node['name']}/labels"
    own = {"zone": "a", "node.name": node["name"], "node.replica-slots": "1"}
    assert (await api.http.get(path)).json() == own
    put = await api.http.put(path, json={"tier": "gold"})
    assert (put.status_code, put.json()) == (200, {**own, "tier": "gold"})
    patched = await api.http.patch(path, json={"example.com/team": "x", "zone": "z"})
    assert patched.json() == {**own, "tier": "gold", "example.com/team": "x", "zone": "z"}
    for key in ("example.com/team", "zone", "not-there"):
        removed = await api.http.delete(f"{path}/{key}")
        assert removed.status_code == 200
        assert removed.json().get(key) == own.get(key)
    assert removed.json() == (await api.http.get(path)).json() == {**own, "tier": "gold"}


@pytest.mark.parametrize(
    ("labels", "field"),
    [({"k" * 129: "x"}, "labels"), ({"a b": "x"}, "labels"), ({"node.name": "me"}, "node.name"), ({"zone": 3}, "zone")],
)
async def test_labels_out_of_range_are_refused_and_nothing_is_written(
    api: Api, labels: dict[str, Any], field: str
) -> None:
    """R5."""
    node = await api.register()
    path = f"/api/v1/nodes/{node['id']}/labels"
    before = (await api.http.get(path)).json()
    for send in (api.http.put, api.http.patch):
        answer = await send(path, json={"fine": "yes", **labels})
        assert (answer.status_code, answer.json()["facts"]["field"]) == (400, field)
        assert "error" not in answer.json()
    assert (await api.http.get(path)).json() == before


async def test_overrides_answer_with_the_node_as_it_is_now(api: Api) -> None:
    """R73, R74, R90."""
    node = await api.register(max_replicas_per_model=2, total_vram=24 * GIB, available_vram=24 * GIB)
    path = f"/api/v1/nodes/{node['id']}"
    replicas = (await api.http.put(f"{path}/max-replicas", json={"value": 5})).json()
    assert (replicas["max_replicas_per_model"], replicas["max_replicas_per_model_manually_set"]) == (5, True)
    assert replicas["labels"]["node.replica-slots"] == "5"
    budget = (await api.http.put(f"{path}/vram-budget", json={"value": "50%"})).json()
    assert (budget["vram_budget"], budget["vram_budget_bytes"], budget["available_vram"]) == ("50%", 12 * GIB, 12 * GIB)
    assert budget == (await api.http.get(path)).json()
    reset = (await api.http.delete(f"{path}/max-replicas")).json()
    assert (reset["max_replicas_per_model"], reset["max_replicas_per_model_manually_set"]) == (2, False)
    reset = (await api.http.delete(f"{path}/vram-budget")).json()
    assert (reset["vram_budget_manually_set"], reset["available_vram"]) == (False, 24 * GIB)


@pytest.mark.parametrize("value", [True, None, [], {}, -1])
@pytest.mark.parametrize("route", ["vram-budget", "max-replicas"])
async def test_an_override_that_is_no_value_is_refused(api: Api, route: str, value: object) -> None:
    """`true` is not one byte, nor one replica."""
    node = await api.register()
    answer = await api.http.put(f"/api/v1/nodes/{node['id']}/{route}", json={"value": value})
    assert (answer.status_code, answer.json()["facts"]["field"].partition(".")[0]) == (400, "value")
    unknown = await api.http.put(f"/api/v1/nodes/nobody/{route}", json={"value": "1"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_node")

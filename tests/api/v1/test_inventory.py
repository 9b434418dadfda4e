"""Installed backends over HTTP."""

from tests.api.node import on_the_bus
from tests.api.station import Api


async def test_asking_the_node_refreshes_the_copy(api: Api) -> None:
    node = await api.approved_node(name="inventory-1")
    path = f"/api/v1/nodes/{node['name']}/inventory"
    never = (await api.http.get(path)).json()
    assert (never["seen_at"], never["backends"]) == (None, [])
    async with on_the_bus(node):
        refreshed = await api.http.post(f"{path}/refresh")
    assert refreshed.status_code == 200, refreshed.text
    assert [(each["name"], each["version"]) for each in refreshed.json()["backends"]] == [("echo", "2")]
    assert (await api.http.get(path)).json() == refreshed.json()  # the node is away by now
    away = await api.http.post(f"{path}/refresh")
    assert (away.status_code, away.json()["code"]) == (503, "node_away")


async def test_localais_list_of_backends_refreshes_the_copy_too(api: Api) -> None:
    node = await api.approved_node()
    async with on_the_bus(node):
        listed = (await api.http.get(f"/api/nodes/{node['id']}/backends")).json()
    kept = (await api.http.get(f"/api/v1/nodes/{node['id']}/inventory")).json()
    assert kept["seen_at"]
    assert [each["digest"] for each in kept["backends"]] == [each["digest"] for each in listed] == ["ab"]


async def test_fleet_shows_what_is_where(api: Api) -> None:
    node = await api.approved_node(labels={"suite": "spread"})
    async with on_the_bus(node):
        await api.http.post(f"/api/v1/nodes/{node['id']}/inventory/refresh")
    spread = await api.http.get("/api/v1/inventory", params={"backend": "Echo", "selector": "suite=spread"})
    (echo,) = spread.json()["items"]
    assert (echo["family"], echo["nodes"], echo["differing"]) == ("echo", 1, [])
    assert echo["builds"] == [{"version": "2", "digest": "ab", "nodes": 1}]
    assert (await api.http.get("/api/v1/inventory", params={"backend": "nobody-has-it"})).json()["items"] == []
    listed = (await api.http.get("/api/v1/nodes?backend=echo&selector=suite=spread")).json()
    assert [each["id"] for each in listed["items"]] == [node["id"]]
    assert (await api.http.get("/api/v1/inventory", params={"selector": "=="})).status_code == 400

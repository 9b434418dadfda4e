"""LocalAI's backend API: exact shapes, from the same state as our own routes."""

import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from nodesmith.api.localai.backend_lists import modalities
from nodesmith.contracts.nats.messages import Installed
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.runtime.settings import ControlSettings
from nodesmith.store.nodes.inventory import InventoryTable
from tests.api.station import Api, until
from tests.databases import opened
from tests.gallery import wild
from tests.gallery.site import Page, Site, serving

AT = "2026-11-16T03:00:00Z"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
async def engine(api: Api, site: Site) -> AsyncIterator[str]:
    """A gallery of the same name with one engine for all hardware."""
    name = f"e{secrets.token_hex(3)}"
    site.pages[f"/{name}"] = Page(wild.backend(name).encode(), etag=f'"{name}"')
    body = {"name": name, "url": f"{site.url}/{name}", "mirrors": [f"{site.url}/mirror"]}
    assert (await api.http.post("/api/v1/galleries", json=body)).status_code == 201
    yield name
    await api.http.delete(f"/api/v1/galleries/{name}")


async def asked(api: Api, path: str) -> Any:
    answer = await api.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def named(api: Api, path: str, name: str, key: str = "name") -> dict[str, Any] | None:
    return next((each for each in await asked(api, path) if each[key] == name), None)


async def healthy_node(api: Api, **facts: Any) -> dict[str, Any]:
    node = await api.approved_node(**facts)
    api.deps.heartbeats.add(Heartbeat(node_id=node["id"]))
    path = f"/api/nodes/{node['id']}"
    await until(lambda: asked(api, path), lambda view: view["status"] == "healthy")
    return node


async def has(settings: ControlSettings, node: dict[str, Any], **facts: Any) -> None:
    async with opened(settings.database_url) as database:
        have = [Installed(**{"installed_at": datetime.fromisoformat(AT), **facts})]
        assert await InventoryTable(database).replace(node["id"], have, asked_at=datetime.now(UTC), boot_id="b")


async def test_installed_backends_are_listed_as_most_nodes_have_them(api: Api, settings: ControlSettings) -> None:
    old, digest = "sha256:" + "0" * 64, "sha256:" + "1" * 64
    first, second, third = [await api.approved_node() for _ in range(3)]
    await has(settings, first, name="echo", version="2", family="echo", digest=digest)
    for node in (second, third):
        await has(settings, node, name="echo", version="1", family="echo", digest=old, uri="/artifacts/e.tar.gz")
    names = {node["name"]: node for node in (first, second, third)}
    echo = await named(api, "/backends", "echo", key="Name")
    assert echo is not None
    nodes = echo.pop("nodes")
    assert echo == {
        "Name": "echo",
        "RunFile": "",
        "IsMeta": False,
        "IsSystem": False,
        "Metadata": {
            "name": "echo",
            "version": "1",
            "digest": old,
            "uri": "/artifacts/e.tar.gz",
            "installed_at": AT,
        },
        "upgrade_available": True,
        "available_version": "2",
    }
    assert {each["node_name"]: each["version"] for each in nodes} == {
        name: "2" if node is first else "1" for name, node in names.items()
    }
    assert nodes[0].keys() >= {"node_id", "node_name", "node_status", "version", "digest", "installed_at"}


async def test_available_is_what_runs_on_a_healthy_node(api: Api, engine: str) -> None:
    assert await named(api, "/backends/available", f"rocm-{engine}") is None
    assert await named(api, "/backends/available", f"cpu-{engine}")
    await healthy_node(api, capability="amd")
    rocm = await named(api, "/backends/available", f"rocm-{engine}")
    assert rocm is not None
    assert rocm["uri"] == f"registry.invalid/forge/backends:latest-gpu-rocm-{engine}"
    assert rocm["gallery"]["name"] == engine
    assert rocm["installed"] is False
    assert "capabilities" not in rocm, "only a meta has them"
    assert await named(api, "/backends/available", f"cuda12-{engine}") is None
    meta = await named(api, "/backends/available", engine)
    assert meta is not None
    assert meta["capabilities"]["amd"] == f"rocm-{engine}"
    assert "uri" not in meta


async def test_build_and_its_meta_are_both_marked_installed(api: Api, settings: ControlSettings, engine: str) -> None:
    node = await api.approved_node()
    await has(settings, node, name=f"cpu-{engine}", family=engine)
    said = {each["name"]: each["installed"] for each in await asked(api, "/backends/available")}
    assert (said[engine], said[f"cpu-{engine}"], said[f"vulkan-{engine}"]) == (True, True, False)
    known = await named(api, "/backends/known", engine)
    assert known is not None
    assert (known["installed"], known["modality"], known["auto_detect"]) == (True, "text", False)
    assert known["description"].startswith(f"Inference of {engine} models")
    assert await named(api, "/backends/known", f"cpu-{engine}") is None, "people choose the meta"


async def test_one_version_of_a_name_is_available_the_one_that_would_be_installed(api: Api) -> None:
    echo = [each for each in await asked(api, "/backends/available") if each["name"] == "echo"]
    assert [each["version"] for each in echo] == ["2"]


async def test_galleries_and_upgrades_are_those_of_our_own_routes(api: Api, site: Site, engine: str) -> None:
    assert await named(api, "/backends/galleries", engine) == {
        "name": engine,
        "url": f"{site.url}/{engine}",
        "mirrors": [f"{site.url}/mirror"],
    }
    assert await named(api, "/backends/galleries", "builtin") == {"name": "builtin", "url": "/artifacts"}
    upgrades = await asked(api, "/api/backends/upgrades")
    assert await asked(api, "/backends/upgrades") == upgrades
    assert (await api.http.post("/backends/upgrades/check")).json() == upgrades


async def test_a_refusal_has_the_shape_that_clients_of_these_paths_read(api: Api) -> None:
    answer = await api.http.put("/backends")
    assert answer.status_code == 405
    assert answer.json()["error"] == {"code": 405, "message": answer.json()["detail"], "type": ""}


async def catalogue(api: Api, **query: Any) -> dict[str, Any]:
    answer = await api.http.get("/api/backends", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_the_catalogue_is_searched_in_pages(api: Api, engine: str) -> None:
    page = await catalogue(api, gallery=engine, term="ROCM", items=1, page=2)
    assert (page["availableBackends"], page["totalPages"], page["currentPage"]) == (2, 2, 2)
    assert (page["prevPage"], page["nextPage"], len(page["backends"])) == (1, 2, 1)
    entry = page["backends"][0]
    assert entry["id"] == f"{engine}@rocm-{engine}-development"
    assert (entry["isMeta"], entry["isDevelopment"], entry["isAlias"]) == (False, True, True)
    assert entry["metaBackendFor"] == f"{engine}-development"
    assert not (await catalogue(api, gallery=engine, tag="nothing"))["backends"]
    assert len((await catalogue(api, gallery=engine, tag="llm"))["backends"]) == 18
    assert "LLM" in page["allTags"]
    backwards = [each["name"] for each in (await catalogue(api, gallery=engine, order="desc"))["backends"]]
    assert backwards == sorted(backwards, reverse=True)


@pytest.mark.parametrize("query", [{"page": 0}, {"items": 0}, {"sort": "colour"}, {"order": "up"}, {"page": "x"}])
async def test_invalid_search_is_refused(api: Api, query: dict[str, Any]) -> None:
    assert (await api.http.get("/api/backends", params=query)).status_code == 400


async def test_where_a_backend_is_installed_and_where_it_could_be_newer(api: Api, settings: ControlSettings) -> None:
    node = await api.approved_node()
    await has(settings, node, name="echo", version="1", family="echo", digest="sha256:" + "0" * 64)
    found = (await catalogue(api, gallery="builtin", term="echo"))["backends"]
    entries = {each["version"]: each for each in found if each["name"] == "echo"}
    assert node["name"] in [each["node_name"] for each in entries["1"]["nodes"]]
    assert entries["1"]["installed"]
    assert node["name"] in entries["2"]["upgradable_on"]
    upgrades = (await api.http.get("/api/backends/upgrades")).json()
    assert (upgrades["echo"]["installed_version"], upgrades["echo"]["available_version"]) == ("1", "2")
    checked = await api.http.post("/api/backends/upgrades/check")
    assert checked.json() == upgrades


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (["CPU", "text to speech"], ["tts"]),
        (["embeddings", "LLM"], ["text", "embeddings"]),
        (["Rerank"], ["reranker"]),
        (["GPU"], []),
    ],
)
def test_uses_of_a_backend_come_from_its_tags(tags: list[str], said: list[str]) -> None:
    assert modalities(tags) == said


async def test_uses_are_listed_by_name(api: Api, engine: str) -> None:
    uses = await asked(api, "/api/backends/usecases")
    assert (uses[engine], uses["echo"]) == (["text"], [])


async def test_catalogue_marks_backends_with_open_operations(api: Api) -> None:
    node = await api.approved_node()
    accepted = await api.http.post(f"/api/nodes/{node['id']}/backends/install", json={"backend": "echo"})
    op_id = accepted.json()["jobID"]
    page = await asked(api, "/api/backends?term=echo&gallery=builtin")
    entries = [entry for entry in page["backends"] if entry["name"] == "echo"]
    marked = {entry["version"]: (entry["processing"], entry["jobID"]) for entry in entries}
    assert (marked["1"], marked["2"]) == ((False, ""), (True, op_id))
    assert page["processingBackends"] == {"builtin@echo": op_id}
    assert page["taskTypes"] == {"builtin@echo": "Waiting"}
    await api.http.post(f"/api/operations/{op_id}/cancel", json={"force": True})

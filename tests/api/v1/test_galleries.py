"""Galleries over HTTP: add, search, refresh, the same on every replica; uploads; roles."""

import asyncio
import gzip
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from nodesmith.contracts.nats.messages import Installed
from nodesmith.runtime.settings import ControlSettings
from nodesmith.store.nodes.inventory import InventoryTable
from tests.api.station import ADMIN_TOKEN, Api, bearer, until
from tests.databases import opened
from tests.gallery import wild
from tests.gallery.site import Page, Site, serving

ARCHIVE = gzip.compress(b"a tiny archive", mtime=0)
LIMIT = 4 * 1024 * 1024


@pytest.fixture(scope="module")
def settings(settings: ControlSettings) -> ControlSettings:
    return settings.model_copy(update={"upload_limit": LIMIT})


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
async def gallery(api: Api, site: Site) -> AsyncIterator[str]:
    """A gallery of our own with one engine for all hardware and one entry that nobody can use."""
    name = f"g-{secrets.token_hex(3)}"
    bad = f"- {{name: {name}-bad}}\n"
    site.pages[f"/{name}"] = Page((wild.backend(f"{name}-engine") + bad).encode(), etag=f'"{name}"')
    answer = await api.http.post("/api/v1/galleries", json={"name": name, "url": f"{site.url}/{name}"})
    assert answer.status_code == 201, answer.text
    yield name
    await api.http.delete(f"/api/v1/galleries/{name}")


@pytest.fixture
async def inventory(settings: ControlSettings) -> AsyncIterator[InventoryTable]:
    async with opened(settings.database_url) as database:
        yield InventoryTable(database)


async def listed(api: Api, **query: Any) -> dict[str, Any]:
    answer = await api.http.get("/api/v1/backends", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def view(api: Api, name: str) -> dict[str, Any]:
    return next(each for each in (await api.http.get("/api/v1/galleries")).json()["items"] if each["name"] == name)


async def test_gallery_is_read_when_added_and_reports_its_status(api: Api, gallery: str) -> None:
    reported = await view(api, gallery)
    assert (reported["entries"], reported["unusable"], reported["error"]) == (18, 1, "")
    assert (await view(api, "builtin"))["entries"] >= 3
    unusable = [bad for bad in (await listed(api))["unusable"] if bad["gallery"] == gallery]
    assert unusable[0]["name"] == f"{gallery}-bad"
    assert "neither a uri nor capabilities" in unusable[0]["reason"]


async def test_every_replica_gives_the_same_answer(api: Api, replica: Api, gallery: str) -> None:
    assert await listed(api, gallery=gallery) == await listed(replica, gallery=gallery)
    await until(lambda: _resolved(replica, f"{gallery}-engine"), lambda artifact: artifact == f"cpu-{gallery}-engine")


async def _resolved(api: Api, name: str) -> str:
    artifact = api.deps.catalogue.resolve(name)
    return artifact.name if artifact else ""


async def test_the_catalogue_is_searched(api: Api, gallery: str) -> None:
    page = await listed(api, gallery=gallery, text="ROCM engine", limit=1, sort="name")
    assert (page["total"], len(page["items"]), "LLM" in page["tags"]) == (2, 1, True)
    following = await listed(api, gallery=gallery, text="ROCM engine", limit=1, cursor=page["next_cursor"])
    [entry] = following["items"]
    assert following["next_cursor"] is None
    assert entry["id"] == f"{gallery}@rocm-{gallery}-engine-development"
    assert (entry["is_meta"], entry["is_development"], entry["is_alias"]) == (False, True, True)
    assert entry["meta_backend_for"] == f"{gallery}-engine-development"
    assert not (await listed(api, gallery=gallery, tag="nothing"))["items"]
    assert len((await listed(api, gallery=gallery, tag="llm"))["items"]) == 18
    backwards = [each["name"] for each in (await listed(api, gallery=gallery, descending=True))["items"]]
    assert backwards == sorted(backwards, reverse=True)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"sort": "colour"},
        {"descending": "perhaps"},
        {"cursor": "x"},
        {"cursor": "-1"},
        {"cursor": "\u0663"},
        {"cursor": "9" * 21},
    ],
)
async def test_invalid_search_is_refused(api: Api, query: dict[str, Any]) -> None:
    answer = await api.http.get("/api/v1/backends", params=query)
    assert (answer.status_code, answer.json()["facts"]) == (400, {"field": next(iter(query))})


async def test_where_it_is_installed_and_where_it_could_be_newer(api: Api, inventory: InventoryTable) -> None:
    node = await api.approved_node()
    have = [Installed(name="echo", version="1", family="echo", digest="sha256:" + "0" * 64)]
    await inventory.replace(node["id"], have, asked_at=datetime.now(UTC), boot_id="b")
    found = (await listed(api, gallery="builtin", text="echo"))["items"]
    entries = {each["version"]: each for each in found if each["name"] == "echo"}
    assert [each["node_name"] for each in entries["1"]["nodes"]] == [node["name"]]
    assert (entries["1"]["installed"], entries["2"]["installed"]) == (True, False)
    assert entries["2"]["upgradable_on"] == [node["name"]]
    upgrades = (await api.http.get("/api/v1/backends/upgrades")).json()
    [echo] = [each for each in upgrades["items"] if each["backend_name"] == "echo"]
    assert (echo["installed_version"], echo["available_version"]) == ("1", "2")
    assert (await api.http.post("/api/v1/backends/upgrades/check")).json() == upgrades


async def test_catalogue_names_the_open_operation_of_a_backend(api: Api) -> None:
    node = await api.approved_node()
    body = {"kind": "install", "node": node["id"], "backend": "echo"}
    op_id = (await api.http.post("/api/v1/operations", json=body)).json()["op_id"]
    found = (await listed(api, gallery="builtin", text="echo"))["items"]
    entries = {each["version"]: each for each in found if each["name"] == "echo"}
    assert (entries["1"]["open_job"], entries["2"]["open_job"]) == ("", op_id)
    await api.http.post(f"/api/v1/operations/{op_id}/cancel", json={"force": True})


async def test_suitability_is_listed_for_each_node(api: Api, gallery: str) -> None:
    amd, plain = await api.approved_node(capability="amd"), await api.approved_node()

    async def reported(backend: str) -> dict[str, tuple[str, str]]:
        answer = await api.http.get("/api/v1/backends/suitability", params={"backend": backend})
        assert answer.status_code == 200, answer.text
        fits = {each["node_id"]: (each["suitability"], each["build"]) for each in answer.json()["items"]}
        return {name: fits[node["id"]] for name, node in (("amd", amd), ("plain", plain))}

    engine = f"{gallery}-engine"
    assert await reported(engine) == {"amd": ("compatible", f"rocm-{engine}"), "plain": ("compatible", f"cpu-{engine}")}
    rocm = f"rocm-{engine}"
    assert await reported(rocm) == {"amd": ("compatible", rocm), "plain": ("override", rocm)}
    assert {fit for fit, _ in (await reported(f"metal-{engine}")).values()} == {"impossible"}
    missing = await api.http.get("/api/v1/backends/suitability")
    assert (missing.status_code, missing.json()["facts"]) == (400, {"field": "backend"})
    unknown = await api.http.get("/api/v1/backends/suitability", params={"backend": "nobody-has-it"})
    assert unknown.status_code == 404


async def test_a_page_never_replaces_the_last_good_copy(api: Api, site: Site, gallery: str) -> None:
    site.pages[f"/{gallery}"] = Page(b"<html>Service Unavailable</html>")
    reported = (await api.http.post(f"/api/v1/galleries/{gallery}/refresh")).json()
    assert "It is not a list" in reported["error"]
    assert reported["entries"] == 18
    site.pages[f"/{gallery}"] = Page(wild.backend("fresh").encode(), etag='"fresh"')
    reported = (await api.http.post(f"/api/v1/galleries/{gallery}/refresh")).json()
    assert (reported["error"], reported["entries"], reported["unusable"]) == ("", 18, 0)
    assert (await listed(api, gallery=gallery, text="fresh"))["total"] == 18


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"name": "builtin", "url": "https://a.invalid/i"}, 400),
        ({"name": "a b", "url": "https://a.invalid/i"}, 400),
        ({"name": "x", "url": "ftp://a.invalid/i"}, 400),
        ({"name": "x", "url": "https://me:secret@a.invalid/i"}, 400),
        ({"name": "x", "url": "file:///nowhere"}, 400),
        ({"url": "file:///nowhere"}, 400),
    ],
)
async def test_what_cannot_be_a_gallery_is_not_added(api: Api, body: dict[str, Any], status: int) -> None:
    answer = await api.http.post("/api/v1/galleries", json=body)
    assert answer.status_code == status
    assert "secret" not in answer.text
    assert not [each for each in (await api.http.get("/api/v1/galleries")).json()["items"] if each["name"] == "x"]


async def test_a_gallery_is_removed_with_all_it_listed(api: Api, site: Site, gallery: str) -> None:
    twice = await api.http.post("/api/v1/galleries", json={"name": gallery, "url": f"{site.url}/{gallery}"})
    assert twice.status_code == 409
    assert (await api.http.delete(f"/api/v1/galleries/{gallery}")).status_code == 200
    assert api.deps.catalogue.resolve(f"{gallery}-engine") is None
    assert (await api.http.delete(f"/api/v1/galleries/{gallery}")).status_code == 404
    assert (await api.http.post(f"/api/v1/galleries/{gallery}/refresh")).status_code == 404


# uploads


def upload_path() -> str:
    return f"/api/v1/uploads/tool-{secrets.token_hex(3)}/1.0"


async def test_an_upload_is_listed_installable_and_served_in_parts(api: Api) -> None:
    path = upload_path()
    digest = hashlib.sha256(ARCHIVE).hexdigest()
    query = {"sha256": digest, "description": "mine", "tag": ["own", "tiny"]}
    answer = await api.http.put(path, content=ARCHIVE, params=query)
    assert answer.status_code == 201, answer.text
    kept = answer.json()
    assert (kept["sha256"], kept["size"], kept["gallery"]) == (digest, len(ARCHIVE), "builtin")
    artifact = api.deps.catalogue.resolve(kept["name"])
    assert artifact is not None
    assert (artifact.uri, artifact.sha256, artifact.size) == (kept["uri"], digest, len(ARCHIVE))
    node = await api.approved_node()
    part = await api.http.get(kept["uri"], headers={**bearer(node["api_token"]), "Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, ARCHIVE[5:10])
    assert kept in (await api.http.get("/api/v1/uploads")).json()["items"]
    assert (await listed(api, tag="own", text=kept["name"]))["total"] == 1


async def test_a_version_is_never_replaced_and_goes_when_removed(api: Api) -> None:
    path = upload_path()
    kept = (await api.http.put(path, content=ARCHIVE)).json()
    assert (await api.http.put(path, content=ARCHIVE)).status_code == 409
    assert (await api.http.get(kept["uri"])).status_code == 200
    assert (await api.http.delete(path)).json()["sha256"] == kept["sha256"]
    assert (await api.http.get(kept["uri"])).status_code == 404
    assert (await api.http.delete(path)).status_code == 404
    assert (await api.http.put("/api/v1/uploads/echo/1", content=ARCHIVE)).status_code == 409


async def test_refused_upload_leaves_no_file(api: Api) -> None:
    before = set(api.deps.artifacts.iterdir())
    refused = [
        await api.http.put(upload_path(), content=b"<html>"),
        await api.http.put(upload_path(), content=b""),
        await api.http.put(upload_path(), content=ARCHIVE, params={"sha256": "0" * 64}),
    ]
    assert [answer.status_code for answer in refused] == [400, 400, 400]
    assert set(api.deps.artifacts.iterdir()) == before


async def test_aborted_upload_leaves_no_file_and_no_crash(api: Api) -> None:
    before = set(api.deps.artifacts.iterdir())
    host, port = api.url.removeprefix("http://").split(":")
    head = f"PUT {upload_path()} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n"
    with capture_logs() as logs:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{head}Content-Length: 3000000\r\n\r\n".encode() + ARCHIVE[:2] + bytes(2_000_000))
        await until(lambda: files(api), lambda found: found > before)
        writer.close()
        await writer.wait_closed()
        await until(lambda: files(api), lambda found: found == before)
        await until(lambda: api.http.get("/readyz"), lambda answer: answer.status_code == 200)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []


async def files(api: Api) -> set[Path]:
    return set(await asyncio.to_thread(lambda: list(api.deps.artifacts.iterdir())))


async def test_an_upload_may_be_larger_than_other_bodies(api: Api) -> None:
    large = ARCHIVE[:2] + secrets.token_bytes(3 * 1024 * 1024)
    answer = await api.http.put(upload_path(), content=large)
    assert answer.json()["sha256"] == hashlib.sha256(large).hexdigest()


async def test_an_upload_over_the_limit_is_413_announced_or_not(api: Api) -> None:
    before = set(api.deps.artifacts.iterdir())
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        yield ARCHIVE
        while taken < 4 * LIMIT:
            taken += 64 * 1024
            yield bytes(64 * 1024)

    announced = await api.http.put(upload_path(), content=ARCHIVE + bytes(LIMIT))
    streamed = await api.http.put(upload_path(), content=endless())
    for answer in (announced, streamed):
        assert (answer.status_code, answer.json()["code"]) == (413, "upload_too_large"), answer.text
        assert answer.json()["facts"]["limit"] == LIMIT
        assert "NODESMITH_UPLOAD_LIMIT" in answer.json()["remedy"]
    assert set(api.deps.artifacts.iterdir()) == before


# who may do what


async def test_only_admins_change_galleries_uploads_and_sources(api: Api) -> None:
    made = await api.http.post("/api/v1/tokens", json={"name": f"op-{secrets.token_hex(3)}", "role": "operator"})
    operator = bearer(made.json()["token"])
    tried = [
        await api.http.post("/api/v1/galleries", json={"name": "x", "url": "file:///x"}, headers=operator),
        await api.http.delete("/api/v1/galleries/x", headers=operator),
        await api.http.post("/api/v1/galleries/refresh", headers=operator),
        await api.http.put(upload_path(), content=ARCHIVE, headers=operator),
        await api.http.put("/api/v1/sources/h.invalid", json={"username": "a"}, headers=operator),
        await api.http.get("/api/v1/sources", headers=operator),
    ]
    assert [answer.status_code for answer in tried] == [403] * len(tried)
    assert (await api.http.get("/api/v1/galleries", headers=operator)).status_code == 200


async def test_upload_of_a_token_that_is_revoked_meanwhile_is_not_listed(api: Api) -> None:
    """An upload may take an hour: the archive of a thief must not reach the gallery after the token was revoked."""
    name, path = f"thief-{secrets.token_hex(3)}", upload_path()
    token = (await api.http.post("/api/v1/tokens", json={"name": name, "role": "admin"})).json()["token"]

    async def revoked_halfway() -> AsyncIterator[bytes]:
        yield ARCHIVE[:20]
        assert (await api.http.delete(f"/api/v1/tokens/{name}")).status_code == 200
        yield ARCHIVE[20:]

    refused = await api.http.put(path, content=revoked_halfway(), headers=bearer(token))
    assert refused.status_code == 401
    assert (await api.http.get(path)).status_code == 404

"""Trust settings of a gallery over HTTP; and who sees the queries of addresses."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from nodesmith.gallery.minisign import SecretKey
from tests.api.station import Api, bearer
from tests.gallery.site import Page, Site, serving
from tests.gallery.test_signed_index import Gallery, entry

SECRET = "X-Amz-Signature=s3cr3t"


@pytest.fixture
def published(tmp_path: Path) -> Gallery:
    return Gallery(tmp_path)


async def view(api: Api, name: str) -> dict[str, Any]:
    return next(each for each in (await api.http.get("/api/v1/galleries")).json()["items"] if each["name"] == name)


async def lower(api: Api, role: str) -> dict[str, str]:
    answer = await api.http.post("/api/v1/tokens", json={"name": f"{role}-{secrets.token_hex(4)}", "role": role})
    return bearer(answer.json()["token"])


async def test_admins_set_the_trust_of_a_gallery(api: Api, published: Gallery) -> None:
    name, key = f"g-{secrets.token_hex(3)}", SecretKey.make()
    added = await api.http.post("/api/v1/galleries", json={"name": name, "url": published.url})
    assert (added.status_code, added.json()["policy"]) == (201, "digest")
    body = {"policy": "signed", "root": published.root, "keys": [key.public_text()]}
    path = f"/api/v1/galleries/{name}/trust"
    assert (await api.http.put(path, json=body, headers=await lower(api, "operator"))).status_code == 403
    answer = await api.http.put(path, json=body)
    assert answer.status_code == 200, answer.text
    reported = await view(api, name)
    assert reported == answer.json()
    assert (reported["policy"], reported["key_ids"], reported["signed_index"], reported["index_version"]) == (
        "signed",
        [key.id],
        True,
        1,
    )
    assert reported["index_expires_at"]
    entries = (await api.http.get("/api/v1/audit", params={"target": name})).json()["items"]
    change = entries[0]
    assert change["action"] == "galleries.trust.set", entries
    assert (change["before"]["policy"], change["after"]["key_ids"]) == ("digest", [key.id])
    refused = await api.http.put(path, json={"policy": "signed"})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_request")
    assert (await api.http.put(f"/api/v1/galleries/none-{name}/trust", json={})).status_code == 404
    node = await api.approved_node()
    install = await api.http.post(
        "/api/v1/operations", json={"kind": "install", "node": node["id"], "backend": "first"}
    )
    assert (install.status_code, install.json()["code"]) == (409, "not_signed")
    published.publish("second")
    published.index.write_text(entry("evil!!"))
    assert "metadata lists" in (await api.http.post(f"/api/v1/galleries/{name}/refresh")).json()["error"]
    assert "galleries ls" in (await api.http.get("/readyz")).json()["degraded"]["galleries"]
    assert (await api.http.delete(f"/api/v1/galleries/{name}")).status_code == 200


@pytest.fixture
def site() -> Any:
    with serving() as site:
        yield site


async def test_queries_of_addresses_are_for_admins_only(api: Api, site: Site) -> None:
    name = f"g-{secrets.token_hex(3)}"
    uri = f"https://files.invalid/{name}.tar.gz?{SECRET}"
    index = f"- {{name: {name}, uri: '{uri}', mirrors: ['{uri}&m=1'], sha256: {'a' * 64}}}\n"
    site.pages[f"/{name}?{SECRET}"] = Page(index.encode())
    body = {"name": name, "url": f"{site.url}/{name}?{SECRET}", "mirrors": [f"{site.url}/gone?{SECRET}"]}
    assert (await api.http.post("/api/v1/galleries", json=body)).status_code == 201
    node = await api.approved_node()
    accepted = await api.http.post("/api/v1/operations", json={"kind": "install", "node": node["id"], "backend": name})
    assert accepted.status_code == 202, accepted.text
    by_uri = {"kind": "install", "uri": uri, "sha256": "a" * 64, "name": f"by-{name}", "nodes": [node["id"]]}
    batch = await api.http.post("/api/v1/batches", json=by_uri)
    assert batch.status_code == 202, batch.text
    seen = (
        "/api/v1/audit",
        "/api/v1/batches",
        f"/api/v1/batches/{batch.json()['batch_id']}",
        "/api/v1/galleries",
        f"/api/v1/backends?text={name}",
        f"/api/backends?term={name}",
        f"/backends/available?{name}",
        "/api/operations",
        "/api/v1/operations",
        f"/api/v1/operations/{accepted.json()['op_id']}",
    )
    for role in ("viewer", "operator"):
        headers = await lower(api, role)
        for path in seen:
            assert "s3cr3t" not in (await api.http.get(path, headers=headers)).text, (role, path)
    shown = [path for path in seen if "s3cr3t" in (await api.http.get(path)).text]
    assert set(shown) >= {"/api/v1/audit", "/api/v1/galleries", f"/api/v1/operations/{accepted.json()['op_id']}"}
    await api.http.delete(f"/api/v1/galleries/{name}")

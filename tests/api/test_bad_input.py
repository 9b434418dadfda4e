"""Requests that cannot mean anything: 4xx, a problem that names the field, and nothing is started."""

from typing import Any

import pytest

from tests.api.station import Api

SHA256 = "0" * 64


@pytest.mark.parametrize("many", [False, True], ids=["one node", "batch"])
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "backend"),
        ({"backend": "no-such-backend"}, "backend"),
        ({"backend": "echo", "version": "99"}, "version"),
        ({"uri": "https://[broken/x.tar.gz", "sha256": SHA256}, "uri"),
        ({"uri": "https:///x.tar.gz", "sha256": SHA256}, "uri"),
        ({"uri": "gopher://host/x.tar.gz", "sha256": SHA256}, "uri"),
        ({"uri": "https://ada:secret@host/x.tar.gz", "sha256": SHA256}, "uri"),
        ({"uri": "https://host/", "sha256": SHA256}, "name"),
    ],
)
async def test_what_is_wrong_with_the_backend_is_named(api: Api, body: dict[str, Any], field: str, many: bool) -> None:
    node = await api.approved_node()
    path = "/api/batches" if many else f"/api/nodes/{node['id']}/backends/install"
    await assert_refused(api, path, {**body, "nodes": [node["name"]]} if many else body, field)
    assert (await api.http.get(f"/api/operations?node={node['id']}&all=true")).json()["operations"] == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "A JSON object is needed as the body."),
        (b"[1]", "The body is not a JSON object."),
        (b"{bad", "The body is not valid JSON."),
        (b"\xff\xfe", "The body is not valid JSON."),
    ],
)
async def test_a_body_that_is_no_object_is_told_so_without_naming_a_field(api: Api, body: bytes, sentence: str) -> None:
    path = f"/api/nodes/{(await api.approved_node())['id']}/backends/install"
    answer = await api.http.post(path, content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"] == sentence
    assert "field" not in answer.json()
    assert "field" not in answer.json()["remedy"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "nodes"),
        ({"selector": "zone=nowhere"}, "selector"),
        ({"selector": "zone~~x"}, "selector"),
        ({"nodes": ["x"], "everywhere": True}, "nodes"),
        ({"everywhere": True, "max_parallel": -1}, "max_parallel"),
        ({"everywhere": True, "max_failures": 0}, "max_failures"),
    ],
)
async def test_what_is_wrong_with_the_nodes_of_a_batch_is_named(api: Api, body: dict[str, Any], field: str) -> None:
    await assert_refused(api, "/api/batches", {"backend": "echo", **body}, field)


async def assert_refused(api: Api, path: str, body: dict[str, Any], field: str) -> None:
    batches = (await api.http.get("/api/batches")).json()
    answer = await api.http.post(path, json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["field"] == field, answer.text
    assert "secret" not in answer.text
    assert (await api.http.get("/api/batches")).json() == batches


@pytest.mark.parametrize("order", ["cancel", "retry", "pause"])
@pytest.mark.parametrize("group", ["operations", "batches"])
async def test_an_unknown_id_is_a_404_on_every_order(api: Api, group: str, order: str) -> None:
    answer = await api.http.post(f"/api/{group}/nobody/{order}", json={})
    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"

"""Invalid requests get a 4xx problem that names the field, and nothing is started."""

import asyncio
from typing import Any

import pytest

from nodesmith.api.app import create_app
from tests.api.station import REGISTRATION_TOKEN, Api, bearer

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
        ({"backend": "echo\x1b[2J"}, "backend"),
        ({"backend": "echo", "version": "1\u202e"}, "version"),
        ({"backend": "echo", "alias": "a\nb"}, "alias"),
        ({"uri": "https://host/x\x9b.tar.gz", "sha256": SHA256}, "uri"),
        ({"backend": "echo", "upgrade_policy": "perhaps"}, "upgrade_policy"),
        ({"backend": "echo", "kind": "polish"}, "kind"),
    ],
)
async def test_what_is_wrong_with_the_backend_is_named(api: Api, body: dict[str, Any], field: str, many: bool) -> None:
    node = await api.approved_node()
    path = "/api/v1/batches" if many else "/api/v1/operations"
    where = {"nodes": [node["name"]]} if many else {"kind": "install", "node": node["name"]}
    await assert_refused(api, path, {**where, **body}, field)
    assert (await api.http.get(f"/api/v1/operations?node={node['id']}&scope=all")).json()["items"] == []


@pytest.mark.parametrize("backend", ["echo%1b[2J", "e" * 256, "a%E2%80%AEb"])
async def test_a_backend_in_the_path_is_refused_like_one_in_the_body(api: Api, backend: str) -> None:
    paths = [path for path, verbs in create_app(api.deps).openapi()["paths"].items() if "post" in verbs]
    named = [path for path in paths if path.endswith("/{backend}")]
    assert len(named) >= 6
    for path in named:
        await assert_refused(api, path.replace("{backend}", backend), {}, "backend")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "A JSON object is needed as the body."),
        (b"[1]", "The body is not a JSON object."),
        (b"{bad", "The body is not valid JSON."),
        (b"\xff\xfe", "The body is not valid JSON."),
    ],
)
async def test_body_that_is_not_an_object_is_refused_without_a_field_name(api: Api, body: bytes, sentence: str) -> None:
    answer = await api.http.post("/api/v1/operations", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"] == sentence
    assert answer.json()["facts"] == {}
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
    await assert_refused(api, "/api/v1/batches", {"backend": "echo", **body}, field)


async def assert_refused(api: Api, path: str, body: dict[str, Any], field: str) -> None:
    batches = (await api.http.get("/api/v1/batches")).json()["items"]
    answer = await api.http.post(path, json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["facts"]["field"] == field, answer.text
    assert "secret" not in answer.text
    assert (await api.http.get("/api/v1/batches")).json()["items"] == batches


@pytest.mark.parametrize(
    "path",
    [
        *(f"/api/v1/operations/nobody/{order}" for order in ("cancel", "retry", "dismiss")),
        *(f"/api/v1/batches/nobody/{order}" for order in ("cancel", "retry", "pause", "resume")),
        *(f"/api/operations/nobody/{order}" for order in ("cancel", "pause")),
    ],
)
async def test_an_unknown_id_is_a_404_on_every_order(api: Api, path: str) -> None:
    answer = await api.http.post(path, json={})
    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("odd", ["\x1b[2J", "\u202e", "\r", "\x9b", "\u200b", "\x00"])
async def test_names_and_labels_cannot_contain_terminal_control_characters(api: Api, odd: str) -> None:
    body = {"name": f"node{odd}", "protocol": 2, "machine_id": "m"}
    named = await api.http.post("/api/node/register", json=body, headers=bearer(REGISTRATION_TOKEN))
    assert (named.status_code, named.json()["facts"]["field"]) == (400, "name")
    node = await api.register()
    labelled = await api.http.patch(f"/api/v1/nodes/{node['id']}/labels", json={"zone": f"a{odd}"})
    assert labelled.status_code == 400, labelled.text
    own = {**body, "name": node["name"], "nats_key": node["nats_key"], "labels": {"zone": f"a{odd}"}}
    reported = await api.http.post("/api/node/register", json=own, headers=bearer(node["api_token"]))
    assert (reported.status_code, reported.json()["facts"]["field"]) == (400, "labels"), reported.text


HOSTILE_PATHS = [
    "/api/v1/nodes/..%2f..%2fetc%2fpasswd",
    "/api/v1/nodes/%00",
    "/api/v1/nodes/" + "a" * 5000,
    "/artifacts/..%2f..%2fetc%2fpasswd",
    "/artifacts/%2e%2e",
    "/artifacts/.hidden",
    "/static/..%2fapp.py",
    "/static/../app.py",
    "/api/v1/operations/%00",
    "/api/v1/batches/..%2f",
    "/api/v1/events?op_id=%00&last_event_id=-1",
    "/api/v1/nodes?limit=999999999",
    "/api/v1/nodes?selector=" + "%28" * 1000,
    "/api/v1/nodes?selector=" + "a" * 9000,
    "/api/v1/audit?limit=100000000",
    "/api/v1/audit?actor=%00",
    "/api/v1/operations?node=%00",
    "/api/v1/operations?limit=-1",
    "/api/v1/operations?scope=nonsense",
    "/api/v1/backends?text=" + "a" * 9000,
    "/api/v1/backends?cursor=%D9%A3",
    "/api/backends?term=" + "a" * 9000,
    "/api/nodes/%00",
    "/api/nodes/models/%F0%28%8C%28",
    "/api/v1/models/%F0%28%8C%28",
    "/api/v1/tokens/%00",
]


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=lambda path: path[:40])
async def test_hostile_paths_and_queries_are_a_4xx(api: Api, path: str) -> None:
    """Or an empty list; never a 5xx, and nothing of a file."""
    answer = await api.http.get(path)
    assert answer.status_code < 500, answer.text
    assert "root:" not in answer.text
    assert answer.status_code >= 400 or answer.json() is not None


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":' * 100_000,
        b"[" * 200_000 + b"]" * 200_000,
        b'{"backend": "echo", "wait_for_node_s": 1e999}',
        b'{"backend": "echo", "wait_for_node_s": ' + b"9" * 5000 + b"}",
        b'{"backend": "\\ud800"}',
        b'{"backend": "echo\\u0000"}',
        b'{"backend": "echo", "backend": ["echo"]}',
        b'{"backend": "echo", "name": {"$ne": ""}}',
    ],
    ids=["open objects", "nested lists", "infinite", "long number", "half a character", "NUL", "twice", "object"],
)
async def test_hostile_bodies_are_a_4xx(api: Api, body: bytes) -> None:
    node = (await api.approved_node())["id"]
    intent = b'"kind": "install", "node": "' + node.encode() + b'"'
    headers = {"content-type": "application/json"}
    ours = body.replace(b'{"backend"', b"{" + intent + b', "backend"', 1)
    answer = await api.http.post("/api/v1/operations", content=ours, headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    answer = await api.http.post(f"/api/nodes/{node}/backends/install", content=body, headers=headers)
    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("selector", ["a in (" + "b," * 990 + "b)", "!" * 1900, "(" * 1900, "a=" + '"' * 1900])
async def test_selector_costs_little_whatever_is_in_it(api: Api, selector: str) -> None:
    async with asyncio.timeout(10):
        answer = await api.http.get("/api/v1/nodes", params={"selector": selector})
    assert answer.status_code < 500


async def test_node_cannot_reach_resources_of_another_node(api: Api) -> None:
    """Every route of self-service, with the id and the name of another node."""
    mine, other = await api.approved_node(), await api.approved_node()
    paths = create_app(api.deps).openapi()["paths"]
    routes = [(verb, path) for path, verbs in paths.items() if path.startswith("/api/node/{") for verb in verbs]
    assert len(routes) > 5
    for verb, path in routes:
        for named in (other["id"], other["name"], "nobody"):
            target = path.replace("{node}", named)
            answer = await api.http.request(verb.upper(), target, headers=bearer(mine["api_token"]))
            assert answer.status_code in (400, 401, 403), (verb, target, answer.text)
            assert answer.status_code != 400 or "host" in answer.text

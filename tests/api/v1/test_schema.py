"""The OpenAPI document of `/api/v1`, found in the document itself, so that a new route is covered by being there."""

import keyword
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodesmith.api.app import create_app
from nodesmith.domain.operation import State
from tests.api.records import recorded
from tests.api.station import Api
from tests.gallery import wild
from tests.store.transitions import a_request, transition

OURS = "/api/v1/"
FREE_KEYS = {"AuditEntry": {"before", "after"}, "FieldChange": {"before", "after"}, "Problem": {"facts"}}
"""members whose keys depend on what was changed, or on the problem"""

MAPS = {"/api/v1/nodes/{node}/labels", "/api/v1/nodes/{node}/labels/{key}"}
"""answers that are one map of texts"""

NO_PAGE = {
    "/api/v1/nodes/{node}/backends/{backend}/logs": "output, which has a cursor of its own and no end",
    "/api/v1/nodes/{node}/inventory": "one reading of one node's disk",
    "/api/v1/nodes/{node}/backends": "one reading of one node's disk",
    "/api/v1/operations/pending": "a summary",
    "/api/v1/operations/{op_id}": "one operation with its timeline",
    "/api/v1/batches/{batch_id}": "one batch with its members",
    "/api/v1/nodes/{node}": "one node",
    "/api/v1/galleries/{name}": "one gallery",
    "/api/v1/keys": "one trust list",
    "/api/v1/trust": "one chain of trust lists, which are verified together",
    "/api/v1/uploads/{name}/{version}": "one upload",
    "/api/v1/tokens/{token}": "one token",
    "/api/v1/invites/{invite}": "one invite",
    "/api/v1/hold": "the hold",
    "/api/v1/deployments/{name}": "one deployment with its replicas",
    "/api/v1/deployments/{name}/explain": "one decision",
    "/api/v1/deployments/{name}/load-status": "one load",
    "/api/v1/nodes/{node}/drain-preview": "one plan",
}
"""reads that are no list of resources, and why"""

NO_RESOURCE = {
    "/api/v1/sign-in-links": "the link works once: reading it would use it up",
    "/api/v1/nodes/{node}/backends/stop": "the order is sent and not followed up",
}
"""answers with 201 or 202 that have no address to read"""


@pytest.fixture(scope="module")
def document(api: Api) -> dict[str, Any]:
    return create_app(api.deps).openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, verbs in document["paths"].items():
        if path.startswith(OURS):
            for verb, operation in verbs.items():
                yield verb.upper(), path, operation


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].removeprefix("#/components/schemas/")]
    return found


def answer_schema(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of the JSON answer; None for other content."""
    [success] = [answer for status, answer in operation["responses"].items() if status in ("200", "201", "202")]
    content = success.get("content", {}).get("application/json")
    return resolved(document, content["schema"]) if content else None


def shapes_of_v1(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every shape that a route of v1 takes or answers with, and all shapes in them."""
    found: dict[str, dict[str, Any]] = {}

    def collect(part: Any) -> None:
        if isinstance(part, list):
            for each in part:
                collect(each)
        if not isinstance(part, dict):
            return
        reference = part.get("$ref", "")
        name = reference.removeprefix("#/components/schemas/")
        if reference and name not in found:
            found[name] = document["components"]["schemas"][name]
            collect(found[name])
        for each in part.values():
            collect(each)

    for _, _, operation in operations(document):
        collect(operation)
    return found


def test_document_has_no_dead_reference(document: dict[str, Any]) -> None:
    named = set(re.findall(r"'\$ref': '([^']+)'", str(document)))
    assert {each for each in named if not each.startswith("#/components/schemas/")} == set()
    assert {each.rpartition("/")[2] for each in named} <= document["components"]["schemas"].keys()


def test_every_list_is_a_page(document: dict[str, Any]) -> None:
    reads = [(path, operation) for verb, path, operation in operations(document) if verb == "GET"]
    pages = set()
    for path, operation in reads:
        schema = answer_schema(document, operation)
        if schema is None or path in MAPS:
            continue
        assert schema["type"] == "object", path
        if "items" in schema["properties"]:
            assert {"items", "next_cursor"} <= schema["properties"].keys(), path
            pages.add(path)
    described = {path for path, operation in reads if answer_schema(document, operation) is not None}
    assert described - pages - MAPS == NO_PAGE.keys()
    assert len(pages) >= 14


def test_a_page_that_takes_a_limit_takes_a_cursor(document: dict[str, Any]) -> None:
    for verb, path, operation in operations(document):
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert ("limit" in names) == ("cursor" in names) or path in NO_PAGE, f"{verb} {path}"


def test_every_answer_is_typed(document: dict[str, Any]) -> None:
    """No list of anything, and no object without named fields."""
    for verb, path, operation in operations(document):
        schema = answer_schema(document, operation)
        if schema is None:
            assert (verb, path) in {("GET", "/api/v1/ca.pem"), ("GET", "/api/v1/events")}
        elif path in MAPS:
            assert schema["additionalProperties"] == {"type": "string"}
        else:
            assert schema["properties"], f"{verb} {path}"
    for name, shape in shapes_of_v1(document).items():
        for member, described in shape.get("properties", {}).items():
            if member not in FREE_KEYS.get(name, ()):
                assert_typed(described, f"{name}.{member}")


def assert_typed(schema: dict[str, Any], where: str) -> None:
    if "anyOf" in schema:
        for each in schema["anyOf"]:
            assert_typed(each, where)
        return
    assert schema.keys() & {"type", "$ref", "const", "enum"}, where
    if schema.get("type") == "array":
        assert_typed(schema["items"], where)
    if schema.get("type") == "object":
        assert_typed(schema["additionalProperties"], where)


def test_every_field_and_parameter_is_described(document: dict[str, Any]) -> None:
    shapes = shapes_of_v1(document)
    assert len(shapes) > 60
    for name, shape in shapes.items():
        bare = [member for member, described in shape.get("properties", {}).items() if not described.get("description")]
        assert bare == [], name
    for verb, path, operation in operations(document):
        bare = [each["name"] for each in operation.get("parameters", []) if not each.get("description")]
        assert bare == [], f"{verb} {path}"
        assert operation.get("description"), f"{verb} {path}"


def test_every_request_body_has_an_example(document: dict[str, Any]) -> None:
    for verb, path, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            continue
        schema = content["schema"]
        choices = [resolved(document, each) for each in schema.get("anyOf", [schema])]
        assert any("examples" in each for each in [schema, *choices]), f"{verb} {path}"


def test_operation_ids_are_unique_and_good_names(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for verbs in document["paths"].values() for operation in verbs.values()]
    assert len(ids) == len(set(ids))
    for verb, path, operation in operations(document):
        name = operation["operationId"]
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name), f"{verb} {path}: {name}"
        assert not keyword.iskeyword(name)
        assert not name.startswith("localai"), f"{verb} {path}"


def test_errors_have_localais_member_on_its_paths_only(document: dict[str, Any]) -> None:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            for status, answer in operation["responses"].items():
                schema = answer.get("content", {}).get("application/problem+json", {}).get("schema")
                if schema is not None:
                    is_theirs = path.startswith(("/api/", "/backends")) and not path.startswith(OURS)
                    expected = "LocalaiProblem" if is_theirs else "Problem"
                    assert schema == {"$ref": f"#/components/schemas/{expected}"}, f"{verb} {path} {status}"
    assert "error" not in document["components"]["schemas"]["Problem"]["properties"]


# Location -----------------------------------------------------------------------------------------------------


def located(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (verb, path)
        for verb, path, operation in operations(document)
        for status in ("201", "202")
        if status in operation["responses"]
    } - {("POST", path) for path in NO_RESOURCE}


async def batch_of(api: Api) -> str:
    node = await api.approved_node()
    answer = await api.http.post("/api/v1/batches", json={"backend": "echo", "nodes": [node["id"]]})
    return str(answer.json()["batch_id"])


async def operation_of(api: Api) -> str:
    node = await api.approved_node()
    body = {"kind": "install", "node": node["id"], "backend": "echo"}
    return str((await api.http.post("/api/v1/operations", json=body)).json()["op_id"])


async def failed_operation(api: Api) -> str:
    node = await api.approved_node()
    failed = a_request(node_id=node["id"])
    await api.deps.admission.orders.add([failed])
    await api.deps.operations.record(transition(failed, State.FAILED))
    return failed.op_id


async def failed_batch(api: Api) -> str:
    """A batch whose only member failed."""
    node = await api.approved_node()
    answer = await api.http.post("/api/v1/batches", json={"backend": "echo", "nodes": [node["id"]]})
    [op_id] = answer.json()["operations"].values()
    batch_id = str(answer.json()["batch_id"])
    await recorded(api, State.FAILED, op_id=op_id, node_id=node["id"], batch_id=batch_id)
    return batch_id


async def requests_for(api: Api, folder: Path) -> dict[tuple[str, str], tuple[str, dict[str, Any]]]:
    """A request that each of these routes accepts."""
    index, name = folder / "index.yaml", f"g-{secrets.token_hex(3)}"
    index.write_text(wild.backend(name))
    node = await api.approved_node()
    install = {"kind": "install", "node": node["id"], "backend": "echo"}
    batches = {order: await batch_of(api) for order in ("pause", "resume", "cancel")}
    return {
        ("POST", "/api/v1/operations"): ("/api/v1/operations", {"json": install}),
        ("POST", "/api/v1/operations/{op_id}/cancel"): (f"/api/v1/operations/{await operation_of(api)}/cancel", {}),
        ("POST", "/api/v1/operations/{op_id}/retry"): (f"/api/v1/operations/{await failed_operation(api)}/retry", {}),
        ("POST", "/api/v1/batches"): ("/api/v1/batches", {"json": {"backend": "echo", "nodes": [node["id"]]}}),
        ("POST", "/api/v1/batches/{batch_id}/retry"): (f"/api/v1/batches/{await failed_batch(api)}/retry", {}),
        **{
            ("POST", f"/api/v1/batches/{{batch_id}}/{order}"): (f"/api/v1/batches/{batch_id}/{order}", {})
            for order, batch_id in batches.items()
        },
        ("POST", "/api/v1/galleries"): ("/api/v1/galleries", {"json": {"name": name, "url": index.as_uri()}}),
        ("PUT", "/api/v1/uploads/{name}/{version}"): (
            f"/api/v1/uploads/{name}/1.0",
            {"content": b"\x1f\x8b an archive", "params": {"description": "a test"}},
        ),
        ("POST", "/api/v1/tokens"): ("/api/v1/tokens", {"json": {"name": name, "role": "viewer"}}),
        ("POST", "/api/v1/invites"): ("/api/v1/invites", {"json": {}}),
    }


async def test_what_was_created_or_ordered_is_found_at_its_location(
    api: Api, document: dict[str, Any], tmp_path: Path
) -> None:
    requests = await requests_for(api, tmp_path)
    assert requests.keys() == located(document)
    for (verb, path), (address, parts) in requests.items():
        answer = await api.http.request(verb, address, **parts)
        assert answer.status_code in (201, 202), (path, answer.text)
        found = await api.http.get(answer.headers["Location"])
        assert found.status_code == 200, (path, found.text)
        [declared] = [
            status for status in ("201", "202") if status in document["paths"][path][verb.lower()]["responses"]
        ]
        assert "Location" in document["paths"][path][verb.lower()]["responses"][declared]["headers"], path


async def test_repeated_request_has_the_same_location(api: Api, tmp_path: Path) -> None:
    index, name = tmp_path / "index.yaml", f"g-{secrets.token_hex(3)}"
    index.write_text(wild.backend(name))
    key = {"Idempotency-Key": secrets.token_hex(8)}
    body = {"name": name, "url": index.as_uri()}
    first, again = [await api.http.post("/api/v1/galleries", json=body, headers=key) for _ in range(2)]
    assert (again.headers["idempotent-replayed"], again.status_code) == ("true", 201)
    assert again.headers["Location"] == first.headers["Location"] == f"/api/v1/galleries/{name}"

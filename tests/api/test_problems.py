"""Every failure is a problem with a remedy, in the shape that LocalAI's clients of the path expect."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from nodesmith.api.problems import STATUS
from nodesmith.contracts.words import ERRORS
from nodesmith.domain.errors import NodesmithError
from nodesmith.store.catalogue.galleries import UploadTable
from nodesmith.store.database import Database
from tests.api.station import REGISTRATION_TOKEN, Api, bearer, served


def errors_below(kind: type[NodesmithError]) -> Iterator[type[NodesmithError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from errors_below(child)


def test_every_domain_error_has_a_status_and_words() -> None:
    known = [error for error in errors_below(NodesmithError) if error.__module__.startswith("nodesmith.domain.")]
    assert set(known) == set(STATUS)
    assert {error.code for error in known} <= set(ERRORS)


def problem(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["detail"]
    return body


async def test_unknown_path_and_wrong_method(api: Api) -> None:
    body = problem(await api.http.get("/api/nothing"), 404)
    assert body["detail"] == "There is nothing at /api/nothing."
    answer = await api.http.delete("/api/operations")
    assert problem(answer, 405)["detail"] == "/api/operations does not take DELETE."
    assert answer.headers["allow"] == "GET"
    assert problem(await api.http.put("/api/v1/operations"), 405)["detail"] == "/api/v1/operations does not take PUT."


@pytest.mark.parametrize("body", ["{", "", "[1,", "nul", "[]", '"text"'])
async def test_malformed_json_is_a_problem(api: Api, body: str) -> None:
    node = await api.approved_node()
    headers = {"Content-Type": "application/json"}
    for path in ("/api/v1/operations", f"/api/nodes/{node['id']}/backends/install"):
        answer = await api.http.post(path, content=body, headers=headers)
        assert problem(answer, 400)["code"] == "invalid_request"


async def test_invalid_field_is_named(api: Api) -> None:
    headers = bearer(REGISTRATION_TOKEN)
    missing = problem(await api.http.post("/api/node/register", json={"address": "h:1"}, headers=headers), 400)
    assert (missing["facts"]["field"], missing["detail"]) == ("name", "name: Field required.")
    node = await api.approved_node()
    wrong = {"kind": "install", "node": node["id"], "backend": "echo", "sha256": "zz"}
    for path in ("/api/v1/operations", f"/api/nodes/{node['id']}/backends/install"):
        assert problem(await api.http.post(path, json=wrong), 400)["facts"] == {"field": "sha256"}
    for path, field in (
        ("/api/v1/operations?limit=0", "limit"),
        ("/api/v1/operations?state=nonsense", "state"),
        ("/api/v1/events?last_event_id=abc", "last_event_id"),
    ):
        assert problem(await api.http.get(path), 400)["facts"] == {"field": field}


async def test_text_that_cannot_be_looked_up_is_the_callers_fault(api: Api) -> None:
    for path in ("/api/nodes/a%00b", "/api/v1/nodes/a%00b", "/api/v1/operations/a%00b", "/api/v1/batches/a%00b"):
        problem(await api.http.get(path), 400)


async def test_localai_clients_find_error_in_their_shape(api: Api) -> None:
    node = problem(await api.http.get("/api/nodes/nobody"), 404)
    assert node["error"] == {"code": 404, "message": "There is no node nobody.", "type": "node_error"}
    operation = problem(await api.http.post("/api/operations/nobody/cancel"), 404)
    assert operation["error"] == "There is no operation nobody."
    token = problem(await api.http.post("/api/node/x/heartbeat", headers=bearer("wrong")), 401)
    assert token["error"] == "A valid token is needed."
    admin = problem(await api.http.get("/api/nodes", headers=bearer("wrong")), 401)
    assert admin["error"] == {"code": 401, "message": "A valid token is needed.", "type": "invalid_request_error"}


async def test_body_that_is_too_big_is_refused(api: Api) -> None:
    huge = b'{"name": "' + b"x" * (2 * 1024 * 1024)

    async def in_pieces() -> Any:
        for start in range(0, len(huge), 65536):
            yield huge[start : start + 65536]

    for content in (huge, in_pieces()):
        headers = {"Content-Type": "application/json", **bearer(REGISTRATION_TOKEN)}
        answer = await api.http.post("/api/node/register", content=content, headers=headers)
        problem(answer, 413)


class BrokenUploads(UploadTable):
    async def list(self) -> Any:
        raise RuntimeError("a defect, with a secret in its message")


async def test_defect_is_a_problem_that_refers_to_the_log(api: Api) -> None:
    gallery = replace(api.deps.gallery, upload_table=BrokenUploads(Database("postgresql://nobody@127.0.0.1:1/none")))
    async with served(replace(api.deps, gallery=gallery)) as broken:
        body = problem(await broken.http.get("/api/v1/uploads"), 500)
    assert body["detail"] == "An unexpected error occurred in Nodesmith."
    assert body["remedy"] == "See the logs of the api process."
    assert "secret" not in str(body)

"""`Idempotency-Key` on every POST, including future ones: carried out once, then the same response."""

import asyncio
import secrets
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from nodesmith.api.idempotency import _SECRET, _declares_shown_once
from nodesmith.api.localai.self_service import router as self_service
from nodesmith.domain.idempotency import StoredAnswer
from nodesmith.store.operations.idempotency import IdempotencyKeys
from tests.api.keys import POSTS, new_key
from tests.api.station import Api, bearer, served

OF_A_NODE = {
    "/api/node/register": "renews credentials; the node's own machine and boot id say which process asks",
    "/api/node/{node}/heartbeat": "a fact of now: the next one replaces it",
    "/api/node/{node}/drain": "a fact that the node states of itself",
    "/api/node/{node}/resume": "a fact that the node states of itself",
    "/api/node/{node}/deregister": "a fact of one boot, named by its boot id",
}
"""requests that take no key, and why they may be repeated as they are"""

KEYED = sorted({each.path.replace(":path}", "}") for each in POSTS} - OF_A_NODE.keys())
BODIES: dict[str, dict[str, Any]] = {
    "/api/v1/operations": {"kind": "install", "node": "keyed", "backend": "echo"},
    "/api/backends/install-external": {"uri": "https://host/own.tar.gz", "name": "own"},
    "/backends/apply": {"id": "echo"},
}
"""where a backend by its name is not enough"""
NOTHING_TO_DO: dict[str, Any] = {"url": "/api/v1/operations/dismiss", "json": {"node": "nobody"}}


@pytest.fixture(scope="module")
async def known(api: Api) -> dict[str, str]:
    """One of everything that a path can name."""
    node = await api.approved_node(name="keyed")
    asked = {"backend": "echo", "nodes": [node["name"]]}
    batch = (await api.http.post("/api/v1/batches", json=asked)).json()["batch_id"]
    other = await api.approved_node()
    asked = {"kind": "install", "backend": "echo", "node": other["id"]}
    op_id = (await api.http.post("/api/v1/operations", json=asked)).json()["op_id"]
    return {"node": node["id"], "batch_id": batch, "op_id": op_id, "backend": "echo", "name": "none"}


def test_requests_that_take_no_key_are_those_of_a_node_for_itself() -> None:
    of_nodes = {each.path for each in POSTS if each.path.startswith(self_service.prefix + "/")}
    assert of_nodes == OF_A_NODE.keys()
    assert len(KEYED) > 40


@pytest.mark.parametrize("path", KEYED)
async def test_a_key_of_another_request_is_refused_on_every_route(api: Api, known: dict[str, str], path: str) -> None:
    key = new_key()
    assert (await api.http.post(**NOTHING_TO_DO, headers=key)).status_code == 200
    refused = await api.http.post(path.format(**known), json=BODIES.get(path, {"backend": "echo"}), headers=key)
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_key_reused"), refused.text


async def test_every_post_describes_the_key_and_its_conflict(api: Api) -> None:
    paths = (await api.http.get("/openapi.json")).json()["paths"]
    for path in KEYED:
        described = paths[path]["post"]
        assert [each["name"].lower() for each in described["parameters"]].count("idempotency-key") == 1, path
        assert "409" in described["responses"], path


def test_a_route_whose_answer_needs_a_secret_declares_it() -> None:
    """A secret is not kept, so an answer without it cannot be given again."""
    declared = {each.path for each in POSTS if _declares_shown_once(each.dependant)}
    assert declared == {"/api/v1/invites", "/api/v1/tokens", "/api/v1/sign-in-links"}
    assert {each.path for each in POSTS if each.path in KEYED and needs_secret(each.response_model)} <= declared


def needs_secret(shape: Any) -> bool:
    if not (isinstance(shape, type) and issubclass(shape, BaseModel)):
        return False
    return any(_SECRET.search(name) and field.is_required() for name, field in shape.model_fields.items())


async def test_a_repeated_order_is_answered_and_not_carried_out(api: Api, replica: Api) -> None:
    """Also under the node's other name, also on another replica, also after somebody took it back."""
    node, key = await api.approved_node(), new_key()
    first = await api.http.post(f"/api/v1/nodes/{node['id']}/drain", json={"reason": "disk"}, headers=key)
    assert (await api.http.post(f"/api/v1/nodes/{node['id']}/resume")).status_code == 200
    again = await replica.http.post(f"/api/v1/nodes/{node['name']}/drain", json={"reason": "disk"}, headers=key)
    assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert (await api.http.get(f"/api/v1/nodes/{node['id']}")).json()["drained_at"] is None
    assert await audited(api, "nodes.drain", node["name"]) == 1


async def audited(api: Api, action: str, target: str) -> int:
    found = await api.http.get("/api/v1/audit", params={"action": action, "target": target})
    return len(found.json()["items"])


@pytest.mark.parametrize("other", [{"json": {"reason": "other"}}, {"params": {"operations": "cancel"}}])
async def test_query_and_body_count(api: Api, other: dict[str, Any]) -> None:
    node, key = await api.approved_node(), new_key()
    path = f"/api/v1/nodes/{node['id']}/drain"
    assert (await api.http.post(path, json={"reason": "disk"}, headers=key)).status_code == 200
    refused = await api.http.post(path, **{"json": {"reason": "disk"}, **other}, headers=key)
    assert refused.status_code == 409


async def test_two_replicas_at_the_same_instant_carry_it_out_once(api: Api, replica: Api) -> None:
    node, key = await api.approved_node(), new_key()
    path = f"/api/v1/nodes/{node['id']}/drain"
    answers = await asyncio.gather(*(each.http.post(path, headers=key) for each in (api, replica) * 4))
    assert {answer.status_code for answer in answers} == {200}
    assert len({str(sorted(answer.json().items())) for answer in answers}) == 1
    assert ["idempotent-replayed" in answer.headers for answer in answers].count(False) == 1
    assert await audited(api, "nodes.drain", node["name"]) == 1


def secret_requests() -> dict[str, dict[str, Any] | None]:
    token = {"name": f"t-{secrets.token_hex(4)}", "role": "viewer"}
    return {
        "/api/v1/tokens": token,
        "/api/v1/invites": {"labels": {"of": token["name"]}},
        "/api/v1/sign-in-links": None,
    }


@pytest.mark.parametrize("path", secret_requests())
async def test_a_secret_is_made_and_shown_once_on_two_replicas(api: Api, replica: Api, path: str) -> None:
    key, body = new_key(), secret_requests()[path]
    answers = await asyncio.gather(*(each.http.post(path, json=body, headers=key) for each in (api, replica) * 3))
    assert sorted(answer.status_code for answer in answers) == [201, *[409] * 5]
    [refused] = {answer.json()["code"] for answer in answers if answer.status_code == 409}
    assert refused == "shown_once"
    [made] = [answer.json() for answer in answers if answer.status_code == 201]
    assert await made_so(api, path, body) == 1
    kept = await api.deps.keys.find("admin", key["Idempotency-Key"])
    assert kept is not None
    assert kept.answer == StoredAnswer(201)
    assert made["expires_at"]


async def made_so(api: Api, path: str, body: dict[str, Any] | None) -> int:
    if body is None:
        found = await api.http.get("/api/v1/audit", params={"action": "sign-in-links.create"})
        return len(found.json()["items"])
    listed = (await api.http.get(path)).json()["items"]
    return sum(body.items() <= each.items() for each in listed if "name" in body or each["labels"] == body["labels"])


async def test_an_answer_is_kept_without_credentials(api: Api) -> None:
    node, key = await api.register(), new_key()
    path = f"/api/nodes/{node['id']}/approve"
    first, again = [(await api.http.post(path, headers=key)).json() for _ in range(2)]
    hidden = {name for name in first if _SECRET.search(name)}
    assert hidden
    assert again == {name: value for name, value in first.items() if name not in hidden}


async def test_refused_request_may_be_repeated_with_its_key(api: Api) -> None:
    key, taken = new_key(), {"name": f"t-{secrets.token_hex(4)}", "role": "viewer"}
    assert (await api.http.post("/api/v1/tokens", json=taken)).status_code == 201
    assert (await api.http.post("/api/v1/tokens", json=taken, headers=key)).json()["code"] == "token_name_taken"
    free = {**taken, "name": f"t-{secrets.token_hex(4)}"}
    assert (await api.http.post("/api/v1/tokens", json=free, headers=key)).status_code == 201


async def test_refused_caller_does_not_claim_the_key(api: Api) -> None:
    token = (await api.http.post("/api/v1/tokens", json={"name": f"v-{secrets.token_hex(4)}", "role": "viewer"})).json()
    key = new_key()
    refused = await api.http.post(**NOTHING_TO_DO, headers={**bearer(token["token"]), **key})
    assert refused.status_code == 403
    assert await api.deps.keys.find(token["name"], key["Idempotency-Key"]) is None


async def test_a_request_that_was_never_answered_is_carried_out_again_unless_it_shows_a_secret(api: Api) -> None:
    """The process died between the effect and the note: an order is idempotent, a secret would be a second one."""

    class Dying(IdempotencyKeys):
        async def answer(self, actor: str, key: str, *, op_id: str, answer: StoredAnswer) -> None:
            """Dead."""

    node, key, secret = await api.approved_node(), new_key(), new_key()
    path, invite = f"/api/v1/nodes/{node['id']}/drain", {"labels": {"of": "dying"}}
    deps = replace(api.deps, keys=Dying(api.deps.keys._database), key_patience_s=0.1)
    async with served(deps) as dying:
        requests: tuple[dict[str, Any], ...] = (
            {"url": path, "headers": key},
            {"url": "/api/v1/invites", "json": invite, "headers": secret},
        )
        statuses = [(await dying.http.post(**each)).status_code for each in requests * 2]
    assert statuses == [200, 201, 200, 409]
    assert await audited(api, "nodes.drain", node["name"]) == 2
    assert [each["labels"] for each in (await api.http.get("/api/v1/invites")).json()["items"]].count(
        invite["labels"]
    ) == 1


async def test_a_key_that_is_too_long_is_bad_input(api: Api) -> None:
    answer = await api.http.post(**NOTHING_TO_DO, headers={"Idempotency-Key": "k" * 256})
    assert (answer.status_code, answer.json()["facts"]["field"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize("depth", [300, 900, 2000, 100_000])
@pytest.mark.parametrize(
    "path", ["/api/v1/tokens", "/api/v1/operations", "/api/nodes/none/backends/install", "/api/v1/batches"]
)
async def test_a_body_of_nested_brackets_with_a_key_is_refused(api: Api, path: str, depth: int) -> None:
    for body in (b"[" * depth + b"]" * depth, b'{"name":' * depth + b"1" + b"}" * depth):
        headers = {"Idempotency-Key": secrets.token_hex(8), "Content-Type": "application/json"}
        answer = await api.http.post(path, content=body, headers=headers)
        assert answer.status_code in (400, 404, 422), answer.text

"""Roles: 401 without a valid token, 403 with one of a lower role; every route says which it needs."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from api.app import _ROUTERS, create_app
from api.auth import is_declared
from domain.access import Role
from tests.api.station import ADMIN_TOKEN, Api, bearer, until

NEEDS_ADMIN = {
    ("POST", "/api/nodes/{node}/approve"),
    ("GET", "/api/tokens"),
    ("POST", "/api/tokens"),
    ("DELETE", "/api/tokens/{token}"),
}
HARMLESS = {"GET", "HEAD"}


async def new_token(api: Api, role: str, **changes: Any) -> dict[str, Any]:
    body = {"name": f"{role}-{len((await api.http.get('/api/tokens')).json())}", "role": role, **changes}
    answer = await api.http.post("/api/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.fixture(scope="module")
async def tokens(api: Api) -> dict[str, str]:
    return {role: (await new_token(api, role))["token"] for role in Role}


def routes() -> Iterator[APIRoute]:
    for module in _ROUTERS:
        for route in module.router.routes:
            assert isinstance(route, APIRoute), route
            yield route


def test_every_route_declares_who_may_use_it() -> None:
    """A change is declared on its route: a router's `viewer` stands for its reads only."""
    undeclared = [
        (route.methods, route.path)
        for route in routes()
        if not is_declared(route.dependant, reads=(route.methods or set()) <= HARMLESS)
    ]
    assert undeclared == []


async def test_a_route_that_declares_nothing_is_for_admins(api: Api, tokens: dict[str, str]) -> None:
    app = create_app(api.parts)

    @app.api_route("/forgotten", methods=["GET", "POST"])
    async def forget() -> str:
        return "done"

    expected = {"": 401, tokens["viewer"]: 403, tokens["operator"]: 403, tokens["admin"]: 200}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://here") as http:
        for verb in ("GET", "POST"):
            for shown, status in expected.items():
                answer = await http.request(verb, "/forgotten", headers=bearer(shown))
                assert answer.status_code == status, (verb, shown, answer.text)


async def test_a_viewer_reads_and_changes_nothing(api: Api, tokens: dict[str, str]) -> None:
    node = await api.approved_node()
    for path in ("/api/nodes", f"/api/nodes/{node['id']}", "/api/operations", "/api/backends", "/api/audit"):
        assert (await api.http.get(path, headers=bearer(tokens["viewer"]))).status_code == 200, path
    refused = await api.http.post(
        f"/api/nodes/{node['id']}/backends/install", json={"backend": "echo"}, headers=bearer(tokens["viewer"])
    )
    assert refused.status_code == 403
    problem = refused.json()
    assert problem["code"] == "not_allowed"
    assert problem["error"] == {"code": 403, "message": problem["detail"], "type": "authorization_error"}
    assert problem["needed"] == "operator"


async def test_an_operator_installs_but_does_not_approve(api: Api, tokens: dict[str, str]) -> None:
    node = await api.approved_node()
    headers = bearer(tokens["operator"])
    accepted = await api.http.post(
        f"/api/nodes/{node['id']}/backends/install", json={"backend": "echo"}, headers=headers
    )
    assert accepted.status_code == 202, accepted.text
    cancelled = await api.http.post(f"/api/operations/{accepted.json()['jobID']}/cancel", headers=headers)
    assert cancelled.status_code == 200
    pending = await api.register()
    assert (await api.http.post(f"/api/nodes/{pending['id']}/approve", headers=headers)).status_code == 403
    assert (await api.http.get(f"/api/nodes/{pending['id']}")).json()["status"] == "pending"


async def test_each_role_gets_403_exactly_where_it_is_too_low(api: Api, tokens: dict[str, str]) -> None:
    """Generated from the description, so that a new route is covered by itself."""
    paths = create_app(api.parts).openapi()["paths"]
    checked = 0
    for path, verbs in paths.items():
        if not path.startswith("/api/") or path.startswith(("/api/node/", "/api/events")):
            continue
        for verb in (verb.upper() for verb in verbs):
            if verb == "GET" and (verb, path) not in NEEDS_ADMIN and await reads(api, path, tokens["viewer"]):
                checked += 1
            elif verb != "GET" and path != "/api/sign-in-links":
                answer = await api.http.request(verb, filled(path), json={}, headers=bearer(tokens["viewer"]))
                assert answer.status_code == 403, (verb, path, answer.text)
                checked += 1
    for verb, path in NEEDS_ADMIN:
        answer = await api.http.request(verb, filled(path), json={}, headers=bearer(tokens["operator"]))
        assert answer.status_code == 403, (verb, path, answer.text)
    assert checked > 10


async def reads(api: Api, path: str, token: str) -> bool:
    answer = await api.http.get(filled(path), headers=bearer(token))
    return answer.status_code not in (401, 403)


def filled(path: str) -> str:
    return "/".join("none" if part.startswith("{") else part for part in path.split("/"))


async def test_a_token_is_shown_once_and_kept_as_a_hash(api: Api) -> None:
    made = await new_token(api, "viewer")
    assert made["token"].startswith("nstok-")
    listed = await api.http.get("/api/tokens")
    assert made["token"] not in listed.text
    assert {entry["name"]: entry["role"] for entry in listed.json()}[made["name"]] == "viewer"


async def test_a_revoked_token_opens_nothing_nor_do_the_browsers_it_signed_in(api: Api) -> None:
    made = await new_token(api, "operator")
    link = (await api.http.post("/api/sign-in-links", headers=bearer(made["token"]))).json()["url"]
    async with httpx2.AsyncClient(base_url=api.url) as browser:
        assert (await browser.get(link)).status_code == 303
        assert (await browser.get("/api/nodes")).status_code == 200
        refused = await browser.get("/api/tokens")
        assert refused.status_code == 403, "the browser has the role of its token"
        assert (await api.http.delete(f"/api/tokens/{made['name']}")).status_code == 200
        assert (await browser.get("/api/nodes")).status_code == 401
    assert (await api.http.get("/api/nodes", headers=bearer(made["token"]))).status_code == 401
    assert (await api.http.delete(f"/api/tokens/{made['id']}")).status_code == 404


async def test_an_expired_token_is_no_token_and_its_name_is_free_again(api: Api) -> None:
    made = await new_token(api, "viewer", expires_in_s=0.01)
    headers = bearer(made["token"])
    await until(lambda: api.http.get("/api/nodes", headers=headers), lambda answer: answer.status_code == 401)
    assert (await new_token(api, "viewer", name=made["name"], expires_in_s=None))["expires_at"] is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"role": "boss"}, "role"),
        ({"name": ""}, "name"),
        ({"name": "two words"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "Admin"}, "name"),
        ({"expires_in_s": -1}, "expires_in_s"),
        ({"expires_in_s": 1e12}, "expires_in_s"),
    ],
)
async def test_bad_input_names_the_field_and_writes_nothing(api: Api, change: dict[str, Any], field: str) -> None:
    before = (await api.http.get("/api/tokens")).json()
    answer = await api.http.post("/api/tokens", json={"name": "fine", "role": "viewer", **change})
    assert answer.status_code == 400
    assert answer.json()["field"] == field
    assert len((await api.http.get("/api/tokens")).json()) == len(before)


async def test_of_two_tokens_of_one_name_at_once_one_is_made(api: Api) -> None:
    body = {"name": "twin", "role": "viewer"}
    answers = await asyncio.gather(*(api.http.post("/api/tokens", json=body) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]


async def test_the_deployments_own_token_stays_admin(api: Api) -> None:
    assert (await api.http.get("/api/tokens", headers=bearer(ADMIN_TOKEN))).status_code == 200

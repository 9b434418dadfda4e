"""Roles: 401 without a valid token, 403 with a lower role; every route declares the role it needs."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from nodesmith.api.app import ROUTERS, create_app
from nodesmith.api.auth import is_declared
from nodesmith.domain.access import Role
from tests.api.station import ADMIN_TOKEN, Api, bearer, served, until

ADMIN = {
    "GET": {
        "/api/v1/tokens",
        "/api/v1/tokens/{token}",
        "/api/v1/invites",
        "/api/v1/invites/{invite}",
        "/api/v1/sources",
        "/api/v1/keys",
        "/api/nodes/scheduling",
        "/api/nodes/scheduling/{model}",
    },
    "POST": {
        "/api/nodes/scheduling",
        "/api/nodes/{node}/approve",
        "/api/v1/nodes/{node}/approve",
        "/api/v1/nodes/{node}/reset-credential",
        "/api/v1/galleries",
        "/api/v1/galleries/refresh",
        "/api/v1/galleries/{name}/refresh",
        "/api/v1/tokens",
        "/api/v1/keys/rotate",
        "/api/v1/invites",
    },
    "PUT": {
        "/api/nodes/{node}/labels",
        "/api/nodes/{node}/max-replicas-per-model",
        "/api/nodes/{node}/vram-budget",
        "/api/v1/nodes/{node}/labels",
        "/api/v1/nodes/{node}/max-replicas",
        "/api/v1/nodes/{node}/vram-budget",
        "/api/v1/uploads/{name}/{version}",
        "/api/v1/sources/{host}",
        "/api/v1/galleries/{name}/trust",
    },
    "PATCH": {"/api/nodes/{node}/labels", "/api/v1/nodes/{node}/labels"},
    "DELETE": {
        "/api/nodes/{node}",
        "/api/nodes/scheduling/{model}",
        "/api/nodes/{node}/labels/{key}",
        "/api/nodes/{node}/max-replicas-per-model",
        "/api/nodes/{node}/vram-budget",
        "/api/operations/history",
        "/api/v1/nodes/{node}",
        "/api/v1/nodes/{node}/labels/{key}",
        "/api/v1/nodes/{node}/max-replicas",
        "/api/v1/nodes/{node}/vram-budget",
        "/api/v1/operations/history",
        "/api/v1/galleries/{name}",
        "/api/v1/uploads/{name}/{version}",
        "/api/v1/sources/{host}",
        "/api/v1/tokens/{token}",
        "/api/v1/invites/{invite}",
    },
}
"""who takes part, and with what. Every other change is for operators, every other read for viewers"""
ANY_ROLE = {
    "POST": {"/api/v1/sign-in-links", "/api/v1/sign-out"},
    "DELETE": {"/api/v1/sessions/{session_id}"},
}
"""changes that concern nobody but the caller"""
OPEN = {"/healthz", "/readyz", "/sign-in/{code}", "/api/v1/ca.pem", "/api/v1/trust"}
ROLES = [Role.CLIENT, Role.VIEWER, Role.OPERATOR, Role.ADMIN]
"""from the lowest; said here a second time, so that a wrong comparison in the product is seen"""
NODE = "node"
NODES_TOO = {"/artifacts/{file}"}
HARMLESS = {"GET", "HEAD"}


async def new_token(api: Api, role: str, **changes: Any) -> dict[str, Any]:
    body = {"name": f"{role}-{len((await api.http.get('/api/v1/tokens')).json()['items'])}", "role": role, **changes}
    answer = await api.http.post("/api/v1/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@pytest.fixture(scope="module")
async def tokens(api: Api) -> dict[str, str]:
    return {role: (await new_token(api, role))["token"] for role in Role}


def routes() -> Iterator[APIRoute]:
    for module in ROUTERS:
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
    app = create_app(api.deps)

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
    for path in (
        "/api/v1/nodes",
        f"/api/v1/nodes/{node['id']}",
        "/api/v1/operations",
        "/api/v1/backends",
        "/api/v1/audit",
        "/api/nodes",
        "/api/operations",
        "/api/backends",
    ):
        assert (await api.http.get(path, headers=bearer(tokens["viewer"]))).status_code == 200, path
    body = {"kind": "install", "node": node["id"], "backend": "echo"}
    refused = await api.http.post("/api/v1/operations", json=body, headers=bearer(tokens["viewer"]))
    assert refused.status_code == 403
    problem = refused.json()
    assert problem["code"] == "not_allowed"
    assert "error" not in problem
    assert problem["facts"]["needed"] == "operator"
    path = f"/api/nodes/{node['id']}/backends/install"
    refused = await api.http.post(path, json=body, headers=bearer(tokens["viewer"]))
    problem = refused.json()
    assert problem["error"] == {"code": 403, "message": problem["detail"], "type": "authorization_error"}


async def test_an_operator_installs_but_does_not_approve(api: Api, tokens: dict[str, str]) -> None:
    node = await api.approved_node()
    headers = bearer(tokens["operator"])
    accepted = await api.http.post(
        "/api/v1/operations", json={"kind": "install", "node": node["id"], "backend": "echo"}, headers=headers
    )
    assert accepted.status_code == 202, accepted.text
    cancelled = await api.http.post(f"/api/v1/operations/{accepted.json()['op_id']}/cancel", headers=headers)
    assert cancelled.status_code == 202
    pending = await api.register()
    assert (await api.http.post(f"/api/v1/nodes/{pending['id']}/approve", headers=headers)).status_code == 403
    assert (await api.http.get(f"/api/v1/nodes/{pending['id']}")).json()["status"] == "pending"


def needed(verb: str, path: str) -> Role:
    if path in ANY_ROLE.get(verb, ()):
        return Role.VIEWER
    if path in ADMIN.get(verb, ()):
        return Role.ADMIN
    return Role.VIEWER if verb == "GET" else Role.OPERATOR


def guarded(api: Api) -> list[tuple[str, str]]:
    """Every route of the description but those that are open, or for a node that speaks for itself."""
    paths = create_app(api.deps).openapi()["paths"]
    chosen = {path: verbs for path, verbs in paths.items() if path not in OPEN and not path.startswith("/api/node/")}
    return [(verb.upper(), path) for path, verbs in chosen.items() for verb in verbs]


async def test_each_role_is_admitted_exactly_where_the_table_says(api: Api, tokens: dict[str, str]) -> None:
    """Generated from the description, so that a new route is covered by itself."""
    credentials = {**tokens, NODE: (await api.approved_node())["api_token"]}
    limit = asyncio.Semaphore(8)

    async def wrong(verb: str, path: str, whose: str) -> str:
        """A body of the wrong shape: who is admitted is told so, and changes nothing."""
        headers = {**bearer(credentials[whose]), "Content-Type": "application/json"}
        async with limit:
            answer = await api.http.request(verb, filled(path), content=b"[]", headers=headers)
        expected, status = refusal(verb, path, whose), answer.status_code
        is_right = status == expected if expected else status not in (401, 403)
        return "" if is_right else f"{verb} {path} as {whose}: {status}, expected {expected or 'admitted'}"

    routes = [(verb, path) for verb, path in guarded(api) if path != "/api/v1/events"]
    asked = [wrong(*route, whose) for route in routes for whose in (NODE, *telling(needed(*route)))]
    complaints = [said for said in await asyncio.gather(*asked) if said]
    assert not complaints, "say in ADMIN or ANY_ROLE which role a new route needs"
    assert len(routes) > 70


def telling(role: Role) -> list[Role]:
    """The role that is enough, and the one that is just too low."""
    return ROLES[max(0, ROLES.index(role) - 1) : ROLES.index(role) + 1]


def refusal(verb: str, path: str, whose: str) -> int:
    """The status with which a caller is refused; 0 when it is admitted."""
    if whose == NODE:
        return 0 if path in NODES_TOO else 401
    return 0 if ROLES.index(Role(whose)) >= ROLES.index(needed(verb, path)) else 403


def test_table_names_routes_that_exist(api: Api) -> None:
    named = {(verb, path) for table in (ADMIN, ANY_ROLE) for verb, paths in table.items() for path in paths}
    assert named <= set(guarded(api))


async def test_head_and_options_open_nothing(api: Api) -> None:
    """A route that answers GET answers no other verb that reads."""
    for path in ("/api/v1/nodes", "/api/v1/tokens", "/", "/artifacts/echo-1.tar.gz"):
        for verb in ("HEAD", "OPTIONS", "TRACE"):
            answer = await api.http.request(verb, path, headers={"Authorization": ""})
            assert answer.status_code in (401, 405), (verb, path)
            assert answer.status_code == 405 or not answer.content
            assert "access-control-allow-origin" not in answer.headers


def filled(path: str) -> str:
    return "/".join("none" if part.startswith("{") else part for part in path.split("/"))


async def test_a_token_is_shown_once_and_kept_as_a_hash(api: Api) -> None:
    made = await new_token(api, "viewer")
    assert made["token"].startswith("nstok-")
    listed = await api.http.get("/api/v1/tokens")
    assert made["token"] not in listed.text
    assert {entry["name"]: entry["role"] for entry in listed.json()["items"]}[made["name"]] == "viewer"


async def test_a_revoked_token_opens_nothing_nor_do_the_browsers_it_signed_in(api: Api) -> None:
    made = await new_token(api, "operator")
    link = (await api.http.post("/api/v1/sign-in-links", headers=bearer(made["token"]))).json()["url"]
    async with httpx2.AsyncClient(base_url=api.url) as browser:
        assert (await browser.get(link)).status_code == 303
        assert (await browser.get("/api/v1/nodes")).status_code == 200
        refused = await browser.get("/api/v1/tokens")
        assert refused.status_code == 403, "the browser has the role of its token"
        assert (await api.http.delete(f"/api/v1/tokens/{made['name']}")).status_code == 200
        assert (await browser.get("/api/v1/nodes")).status_code == 401
    assert (await api.http.get("/api/v1/nodes", headers=bearer(made["token"]))).status_code == 401
    assert (await api.http.delete(f"/api/v1/tokens/{made['id']}")).status_code == 404


async def test_an_expired_token_is_no_token_and_its_name_is_free_again(api: Api) -> None:
    made = await new_token(api, "viewer", expires_in_s=0.01)
    headers = bearer(made["token"])
    await until(lambda: api.http.get("/api/v1/nodes", headers=headers), lambda answer: answer.status_code == 401)
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
    before = (await api.http.get("/api/v1/tokens")).json()["items"]
    answer = await api.http.post("/api/v1/tokens", json={"name": "fine", "role": "viewer", **change})
    assert answer.status_code == 400
    assert answer.json()["facts"]["field"] == field
    assert len((await api.http.get("/api/v1/tokens")).json()["items"]) == len(before)


async def test_of_two_tokens_of_one_name_at_once_one_is_made(api: Api) -> None:
    body = {"name": "twin", "role": "viewer"}
    answers = await asyncio.gather(*(api.http.post("/api/v1/tokens", json=body) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]


async def test_the_deployments_own_token_stays_admin(api: Api) -> None:
    assert (await api.http.get("/api/v1/tokens", headers=bearer(ADMIN_TOKEN))).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/operations",
        "/api/v1/batches",
        "/api/v1/batches/plan",
        "/api/nodes/{}/backends/install",
        "/api/backends/install-external",
    ],
)
async def test_an_install_by_uri_needs_the_role_that_the_policy_names(
    api: Api, tokens: dict[str, str], path: str
) -> None:
    """By default an admin's; a gallery's backend is an operator's to install."""
    node = await api.approved_node()
    body: dict[str, Any] = {"uri": "https://nowhere.invalid/x.tar.gz", "sha256": "a" * 64, "name": "by-uri"}
    body |= {"kind": "install", "nodes": [node["id"]], "node": node["id"]}
    answer = await api.http.post(path.format(node["id"]), json=body, headers=bearer(tokens["operator"]))
    assert (answer.status_code, answer.json()["facts"]["needed"]) == (403, "admin"), answer.text


async def test_a_retry_of_an_install_by_uri_needs_the_same_role(api: Api, tokens: dict[str, str]) -> None:
    """An admin's install that was cancelled does not come back by the word of an operator, alone or in a batch."""
    node, other = await api.approved_node(), await api.approved_node()
    by_uri = {"uri": "https://nowhere.invalid/x.tar.gz", "sha256": "a" * 64, "name": "by-uri"}
    one = await api.http.post("/api/v1/operations", json={"kind": "install", "node": node["id"], **by_uri})
    many = await api.http.post("/api/v1/batches", json={**by_uri, "kind": "install", "nodes": [other["id"]]})
    for path in (f"/api/v1/operations/{one.json()['op_id']}/retry", f"/api/v1/batches/{many.json()['batch_id']}/retry"):
        answer = await api.http.post(path, headers=bearer(tokens["operator"]))
        assert (answer.status_code, answer.json()["facts"].get("needed")) == (403, "admin"), answer.text
        assert (await api.http.post(path)).status_code == 409, "an admin is only told that it is not over yet"


async def test_the_policy_may_open_installs_by_uri_to_operators(api: Api, tokens: dict[str, str]) -> None:
    node, headers = await api.approved_node(), bearer(tokens["operator"])
    body = {"uri": "https://nowhere.invalid/x.tar.gz", "sha256": "a" * 64, "name": "by-uri"}
    admission = api.deps.admission
    rules = replace(admission.intents.rules, role=Role.OPERATOR)
    opened = replace(api.deps, admission=replace(admission, intents=replace(admission.intents, rules=rules)))
    async with served(opened) as other:
        answer = await other.http.post(
            "/api/v1/operations", json={"kind": "install", "node": node["id"], **body}, headers=headers
        )
        assert answer.status_code == 202, answer.text
        await other.http.post(f"/api/v1/operations/{answer.json()['op_id']}/cancel")

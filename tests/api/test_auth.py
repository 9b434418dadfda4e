"""Without a valid credential only health is served."""

import re

import httpx2
import pytest

from nodesmith.api.app import create_app
from tests.api.station import REGISTRATION_TOKEN, Api, bearer

OPEN = {"/healthz", "/readyz", "/sign-in/{code}", "/api/v1/ca.pem", "/api/v1/trust"}
PAGES = [("GET", path) for path in ("/", "/docs", "/openapi.json", "/links.json", "/static/overview.js")]


def guarded_routes(api: Api) -> list[tuple[str, str]]:
    paths = create_app(api.deps).openapi()["paths"]
    routes = [(verb.upper(), path) for path, verbs in paths.items() for verb in verbs if path not in OPEN]
    return [(verb, re.sub(r"\{\w+\}", "none", path)) for verb, path in routes]


async def test_every_route_but_health_refuses_a_missing_or_wrong_token(api: Api) -> None:
    routes = [*guarded_routes(api), *PAGES]
    assert len(routes) > 15
    async with httpx2.AsyncClient(base_url=api.url) as stranger:
        for shown in (None, "Bearer wrong", "Bearer", "Basic YTpi", "Bearer \xff\xfe"):
            raw = [(b"authorization", shown.encode("latin-1"))] if shown else []
            for verb, path in routes:
                body = {"name": "x", "address": "h:1"} if path.endswith("register") else {"backend": "echo"}
                answer = await stranger.request(verb, path, json=body if verb == "POST" else None, headers=raw)
                assert answer.status_code == 401, (verb, path, shown, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["code"] == "not_signed_in"


async def test_health_needs_no_token(api: Api) -> None:
    async with httpx2.AsyncClient(base_url=api.url) as stranger:
        assert (await stranger.get("/healthz")).status_code == 200
        ready = (await stranger.get("/readyz")).json()
        assert (ready["ready"], ready["missing"]) == (True, {})


async def test_node_tokens_are_not_admin_tokens(api: Api) -> None:
    node = await api.approved_node()
    for token in (REGISTRATION_TOKEN, node["api_token"]):
        answer = await api.http.get("/api/v1/nodes", headers=bearer(token))
        assert answer.status_code == 401


async def test_node_credential_works_only_for_its_own_node(api: Api) -> None:
    mine, other = await api.approved_node(), await api.approved_node()
    spoken = await api.http.post(f"/api/node/{mine['id']}/heartbeat", headers=bearer(mine["api_token"]))
    assert spoken.status_code == 200
    foreign = await api.http.post(f"/api/node/{other['id']}/heartbeat", headers=bearer(mine["api_token"]))
    assert foreign.status_code == 401


@pytest.mark.parametrize("token", ["wrong", "test-admin-toke", "test-admin-token2"])
async def test_stranger_does_not_learn_which_nodes_exist(api: Api, token: str) -> None:
    known = await api.register()
    for node in (known["id"], "nobody"):
        answer = await api.http.post(f"/api/node/{node}/heartbeat", headers=bearer(token))
        assert answer.status_code == 401

"""Promise 7: a node with valid credentials tries to act for another, in every route: refused each time.

The routes come from the OpenAPI description, so a new one is covered by being there. The subjects of NATS are tried in
the same way in tests/bus/test_confinement.py.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from nodesmith.api.app import ROUTERS, create_app
from nodesmith.api.auth import anyone, viewer_or_node
from tests.api.station import REGISTRATION_TOKEN, Api, a_nats_key, bearer

REFUSED = {401, 403}


def asks_for(dependant: Dependant, declaration: Any) -> bool:
    return any(below.call is declaration or asks_for(below, declaration) for below in dependant.dependencies)


def open_to_nodes() -> set[tuple[str, str]]:
    """Routes that act for nobody: health, the CA, artifacts."""
    return {
        (verb, route.path)
        for module in ROUTERS
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for verb in route.methods or ()
        if asks_for(route.dependant, anyone) or asks_for(route.dependant, viewer_or_node)
    }


def routes(api: Api) -> Iterator[tuple[str, str]]:
    harmless = open_to_nodes()
    for path, verbs in create_app(api.deps).openapi()["paths"].items():
        yield from ((verb.upper(), path) for verb in verbs if (verb.upper(), path) not in harmless)


def aimed_at(path: str, victim: dict[str, Any], op_id: str, *, by_name: bool) -> str:
    known = {"node": victim["name"] if by_name else victim["id"], "op_id": op_id, "job_id": op_id, "batch_id": "none"}
    return re.sub(r"\{(\w+)\}", lambda found: known.get(found.group(1), "none"), path)


def body_against(path: str, victim: dict[str, Any]) -> dict[str, Any]:
    """What the victim itself, or an operator, would send."""
    if path.endswith("/register"):
        return {
            "name": victim["name"],
            "protocol": 2,
            "machine_id": "m1",
            "boot_id": "b",
            "nats_key": victim["nats_key"],
        }
    fields = {"backend": "echo", "value": "1", "reason": "none", "name": "none", "role": "admin"}
    return {**fields, "kind": "install", "node": victim["id"]}


async def state_of(api: Api, victim: dict[str, Any], op_id: str) -> tuple[Any, ...]:
    node = (await api.http.get(f"/api/v1/nodes/{victim['id']}")).json()
    operation = (await api.http.get(f"/api/v1/operations/{op_id}")).json()
    everybody = (await api.http.get("/api/v1/nodes")).json()["items"]
    tokens = (await api.http.get("/api/v1/tokens")).json()["items"]
    audit = (await api.http.get("/api/v1/audit")).json()
    return node, operation["state"], len(everybody), len(tokens), audit


@pytest.fixture(scope="module")
async def victim(api: Api) -> dict[str, Any]:
    return await api.approved_node()


@pytest.fixture(scope="module")
async def op_id(api: Api, victim: dict[str, Any]) -> str:
    accepted = await api.http.post(
        "/api/v1/operations", json={"kind": "install", "node": victim["id"], "backend": "echo"}
    )
    return str(accepted.json()["op_id"])


@pytest.fixture(scope="module")
async def invite(api: Api) -> str:
    answer = await api.http.post("/api/v1/invites", json={"approve": True, "uses": 50})
    return str(answer.json()["token"])


@pytest.mark.parametrize("credential", ["own", "own of a pending node", "registration token", "invite"])
async def test_node_credential_cannot_act_for_another_node(
    api: Api, victim: dict[str, Any], op_id: str, invite: str, credential: str
) -> None:
    shown = {
        "own": (await api.approved_node(machine_id="m2"))["api_token"],
        "own of a pending node": (await api.register(machine_id="m3"))["api_token"],
        "registration token": REGISTRATION_TOKEN,
        "invite": invite,
    }[credential]
    only_admits = credential in ("registration token", "invite")
    before = await state_of(api, victim, op_id)
    tried = 0
    for verb, path in routes(api):
        if only_admits and path == "/api/node/register":
            continue
        for by_name in (False, True):
            target = aimed_at(path, victim, op_id, by_name=by_name)
            body = None if verb == "GET" else body_against(path, victim)
            answer = await api.http.request(verb, target, json=body, headers=bearer(shown))
            assert answer.status_code in REFUSED, (verb, path, answer.status_code, answer.text)
            tried += 1
    assert tried > 60
    assert await state_of(api, victim, op_id) == before


@pytest.mark.parametrize("credential", ["registration token", "invite"])
async def test_registration_token_or_invite_cannot_take_another_machines_name(
    api: Api, victim: dict[str, Any], op_id: str, invite: str, credential: str
) -> None:
    shown = {"registration token": REGISTRATION_TOKEN, "invite": invite}[credential]
    before = await state_of(api, victim, op_id)
    for stolen in (
        {"name": victim["name"], "protocol": 2, "machine_id": "another", "nats_key": a_nats_key()},
        {"name": victim["name"], "protocol": 1, "address": "10.0.0.9:1", "token": shown},
    ):
        answer = await api.http.post("/api/node/register", json=stolen, headers=bearer(shown))
        assert answer.status_code in {400, 409}, answer.text
    assert await state_of(api, victim, op_id) == before

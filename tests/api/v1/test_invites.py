"""Invites over HTTP: a valid one admits a node, with labels and approval if set; an invalid one changes nothing."""

import secrets
from typing import Any

import httpx2
import pytest

from tests.api.station import Api, a_nats_key, bearer


async def new_invite(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.http.post("/api/v1/invites", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def join(api: Api, token: str, **facts: Any) -> httpx2.Response:
    body = {
        "name": f"joined-{secrets.token_hex(4)}",
        "protocol": 2,
        "machine_id": "m9",
        "nats_key": a_nats_key(),
        **facts,
    }
    return await api.http.post("/api/node/register", json=body, headers=bearer(token))


async def names(api: Api) -> set[str]:
    return {node["name"] for node in (await api.http.get("/api/v1/nodes")).json()["items"]}


async def test_an_invite_that_approves_lets_a_node_in_at_once_with_its_labels(api: Api) -> None:
    invite = await new_invite(api, approve=True, labels={"rack": "7"})
    joined = (await join(api, invite["token"])).json()
    assert joined["nats_jwt"]
    node = (await api.http.get(f"/api/v1/nodes/{joined['id']}")).json()
    assert node["approved_at"] is not None
    assert node["labels"]["rack"] == "7"
    renewed = await join(api, joined["api_token"], name=joined["name"])
    assert renewed.status_code == 201
    assert (await api.http.get(f"/api/v1/nodes/{joined['id']}")).json()["labels"]["rack"] == "7", "an admin's label"
    (entry,) = (await api.http.get("/api/v1/audit", params={"target": joined["id"], "action": "nodes.join"})).json()[
        "items"
    ]
    assert entry["actor"] == f"invite {invite['id']}"


async def test_an_invite_approves_nodes_only_if_it_was_created_so(api: Api) -> None:
    """H1: no silent approval."""
    joined = (await join(api, (await new_invite(api))["token"])).json()
    assert joined["status"] == "pending"
    assert "nats_jwt" not in joined


async def test_the_command_for_the_other_machine_is_whole(api: Api) -> None:
    invite = await new_invite(api)
    trust = api.deps.keyring.fingerprint
    assert invite["command"] == f"nodesmith agent join {invite['url']} {invite['token']} --trust {trust}"
    assert invite["trust"] == trust
    listed = await api.http.get("/api/v1/invites")
    assert invite["token"] not in listed.text
    assert listed.json()["items"][0]["uses"] == 1


async def test_a_used_up_revoked_or_foreign_invite_is_refused_and_nothing_is_written(api: Api) -> None:
    once, revoked = await new_invite(api), await new_invite(api)
    assert (await join(api, once["token"])).status_code == 201
    assert (await api.http.delete(f"/api/v1/invites/{revoked['id']}")).status_code == 200
    before = await names(api)
    for token, status, words in (
        (once["token"], 403, "used 1 times, which is its limit"),
        (revoked["token"], 403, "revoked"),
        ("nsinv-of-another-control-plane", 401, "unknown to this installation"),
    ):
        refused = await join(api, token)
        assert refused.status_code == status
        assert words in refused.json()["detail"]
    assert await names(api) == before


async def test_an_expired_invite_says_when_it_ended(api: Api) -> None:
    refused = await join(api, (await new_invite(api, ttl_s=0.001))["token"])
    assert refused.status_code == 403
    assert "expired at" in refused.json()["detail"]


async def test_a_node_that_could_not_be_registered_costs_no_use(api: Api) -> None:
    taken, invite = await api.register(machine_id="first"), await new_invite(api)
    assert (await join(api, invite["token"], name=taken["name"], machine_id="second")).status_code == 409
    assert (await join(api, invite["token"])).status_code == 201


async def test_an_invite_is_not_for_localai_workers(api: Api) -> None:
    refused = await join(api, (await new_invite(api))["token"], protocol=1, address="10.0.0.1:50051")
    assert (refused.status_code, refused.json()["facts"]["field"]) == (400, "token")


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"uses": 0}, "uses"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 1e9}, "ttl_s"),
        ({"labels": {"": "x"}}, "labels"),
        ({"labels": {"a": "x" * 300}}, "labels"),
        ({"labels": {"node.name": "me"}}, "labels"),
    ],
)
async def test_bad_input_names_the_field_and_makes_no_invite(api: Api, bad: dict[str, Any], field: str) -> None:
    before = (await api.http.get("/api/v1/invites")).json()["items"]
    answer = await api.http.post("/api/v1/invites", json=bad)
    assert answer.status_code == 400
    assert answer.json()["facts"]["field"] == field
    assert (await api.http.get("/api/v1/invites")).json()["items"] == before


async def test_there_is_no_certificate_without_tls(api: Api) -> None:
    assert (await api.http.get("/api/v1/ca.pem")).status_code == 404


async def test_only_admins_invite(api: Api) -> None:
    made = (await api.http.post("/api/v1/tokens", json={"name": "op", "role": "operator"})).json()
    for verb, path in (("GET", "/api/v1/invites"), ("POST", "/api/v1/invites"), ("DELETE", "/api/v1/invites/none")):
        answer = await api.http.request(verb, path, json={}, headers=bearer(made["token"]))
        assert answer.status_code == 403, (verb, path)

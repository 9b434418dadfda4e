"""Nodes over HTTP: register, heartbeat, list, approve, and what is on their disks."""

from typing import Any

import pytest

from tests.api.node import on_the_bus
from tests.api.station import REGISTRATION_TOKEN, Api, bearer, until
from tests.servers import NatsForTests


async def node_view(api: Api, node: str) -> dict[str, Any]:
    answer = await api.http.get(f"/api/nodes/{node}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_new_node_is_pending_and_gets_no_bus_credential(api: Api) -> None:
    node = await api.register()
    assert node["status"] == "pending"
    assert node["api_token"]
    assert "nats_jwt" not in node


async def test_approved_node_gets_a_bus_credential_and_is_listed(api: Api, nats_server: NatsForTests) -> None:
    node = await api.register()
    answer = await api.http.post(f"/api/nodes/{node['name']}/approve")
    assert answer.status_code == 200
    approved = answer.json()
    assert (approved["message"], approved["status"]) == ("node approved", "offline")
    assert approved["nats_jwt"]
    assert approved["nats_url"] == nats_server.url
    listed = (await api.http.get("/api/nodes")).json()
    assert [each["name"] for each in listed] == sorted(each["name"] for each in listed)
    assert node["id"] in {each["id"] for each in listed}
    again = await api.http.post(f"/api/nodes/{node['name']}/approve")
    assert again.status_code == 400


async def test_node_renews_its_credential_with_the_one_it_has(api: Api) -> None:
    node = await api.approved_node()
    body = {"name": node["name"], "protocol": 2, "machine_id": "m1", "nats_key": node["nats_key"]}
    renewed = await api.http.post("/api/node/register", json=body, headers=bearer(node["api_token"]))
    assert renewed.status_code == 201
    assert renewed.json()["id"] == node["id"]
    assert renewed.json()["nats_jwt"]


async def test_another_machine_with_that_name_is_refused(api: Api) -> None:
    node = await api.register(machine_id="m1")
    body = {"name": node["name"], "protocol": 2, "machine_id": "m2", "nats_key": node["nats_key"]}
    answer = await api.http.post("/api/node/register", json=body, headers=bearer(REGISTRATION_TOKEN))
    assert answer.status_code == 409
    assert answer.json()["code"] == "name_taken"
    assert answer.json()["remedy"]


async def test_localai_worker_registers_and_heartbeats_with_the_shared_token(api: Api) -> None:
    """No redirect on a trailing slash, the token also in the body, null labels."""
    body = {"name": "worker-1", "address": "10.0.0.1:50051", "labels": None, "token": REGISTRATION_TOKEN}
    answer = await api.http.post("/api/node/register/", json=body, headers=bearer(REGISTRATION_TOKEN))
    assert answer.status_code == 201
    node = answer.json()
    await api.http.post(f"/api/nodes/{node['id']}/approve")
    beat = {"available_ram": 7, "available_disk": 0, "unheard_of": [1]}
    answer = await api.http.post(f"/api/node/{node['id']}/heartbeat/", json=beat, headers=bearer(REGISTRATION_TOKEN))
    assert (answer.status_code, answer.json()) == (200, {"message": "heartbeat received"})
    heard = await until(lambda: node_view(api, node["id"]), lambda view: view["available_ram"] == 7)
    assert (heard["available_disk"], heard["status"]) == (0, "healthy")


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b'{"available_ram": "lots"}', b"\xff\xfe"])
async def test_heartbeat_with_a_body_that_cannot_be_read_is_still_a_sign_of_life(api: Api, body: bytes) -> None:
    node = await api.approved_node(protocol=1, machine_id="", address="h:1")
    answer = await api.http.post(f"/api/node/{node['id']}/heartbeat", content=body, headers=bearer(REGISTRATION_TOKEN))
    assert answer.status_code == 200


async def test_heartbeat_of_an_unknown_node_is_404(api: Api) -> None:
    answer = await api.http.post("/api/node/nobody/heartbeat", headers=bearer(REGISTRATION_TOKEN))
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "node_error"


# what is on a node's disk, asked over the bus ------------------------------------------------------------------


async def test_backends_of_a_node_are_what_the_node_says(api: Api) -> None:
    node = await api.approved_node()
    async with on_the_bus(node):
        answer = await api.http.get(f"/api/nodes/{node['name']}/backends")
    assert answer.status_code == 200
    assert [(each["name"], each["version"], each["digest"]) for each in answer.json()] == [("echo", "2", "ab")]


async def test_unreachable_node_is_marked_until_it_answers(api: Api) -> None:
    node = await api.approved_node()
    answer = await api.http.get(f"/api/nodes/{node['id']}/backends")
    assert answer.status_code == 503
    assert answer.json()["code"] == "node_away"
    assert (await node_view(api, node["id"]))["unreachable_since"]
    async with on_the_bus(node):
        await api.http.get(f"/api/nodes/{node['id']}/backends")
    await until(lambda: node_view(api, node["id"]), lambda seen: seen["unreachable_since"] is None)


async def test_node_that_runs_no_backends_has_none(api: Api) -> None:
    node = await api.register(node_type="agent")
    answer = await api.http.get(f"/api/nodes/{node['id']}/backends")
    assert (answer.status_code, answer.json()) == (200, [])

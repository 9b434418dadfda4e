"""`Idempotency-Key` over HTTP: one key is one request of one caller, on every replica and every starting route."""

import asyncio
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from nodesmith.api.idempotency import takes_key
from nodesmith.contracts.nats.messages import Installed
from nodesmith.runtime.settings import ControlSettings
from nodesmith.store.nodes.inventory import InventoryTable
from tests.api.keys import POSTS, new_key
from tests.api.station import Api
from tests.databases import opened


async def post(api: Api, path: str, key: dict[str, str], **body: Any) -> Any:
    return await api.http.post(path, json=body, headers=key)


async def install(api: Api, node: dict[str, Any], key: dict[str, str], **body: Any) -> Any:
    return await start(api, node, key, **{"kind": "install", "backend": "echo", **body})


async def start(api: Api, node: dict[str, Any], key: dict[str, str], **body: Any) -> Any:
    return await post(api, "/api/v1/operations", key, node=node["id"], **body)


async def listed(api: Api, node: dict[str, Any]) -> list[str]:
    operations = (await api.http.get(f"/api/v1/operations?scope=all&node={node['id']}")).json()["items"]
    return [each["op_id"] for each in operations]


async def has_echo(settings: ControlSettings, node: dict[str, Any]) -> None:
    async with opened(settings.database_url) as database:
        installed = [Installed(name="echo", version="1", family="echo")]
        await InventoryTable(database).replace(node["id"], installed, asked_at=datetime.now(UTC), boot_id="")


async def test_same_key_and_body_to_three_nodes_in_sequence_starts_on_the_first_only(api: Api) -> None:
    nodes, key = [await api.approved_node() for _ in range(3)], new_key()
    answers = [await install(api, node, key) for node in nodes]
    assert [answer.status_code for answer in answers] == [202, 409, 409]
    job = answers[0].json()["op_id"]
    assert [answer.json()["facts"]["op_id"] for answer in answers[1:]] == [job, job]
    assert [await listed(api, node) for node in nodes] == [[job], [], []]


async def test_same_key_and_body_to_three_nodes_at_the_same_instant_starts_on_one_node(api: Api, replica: Api) -> None:
    nodes, key = [await api.approved_node() for _ in range(3)], new_key()
    replicas = (api, replica, api)
    answers = await asyncio.gather(*(install(*pair, key) for pair in zip(replicas, nodes, strict=True)))
    assert sorted(answer.status_code for answer in answers) == [202, 409, 409]
    [accepted] = [answer.json() for answer in answers if answer.status_code == 202]
    jobs = [job for node in nodes for job in await listed(api, node)]
    assert jobs == [accepted["op_id"]]


async def test_two_replicas_at_the_same_instant_answer_with_one_operation(api: Api, replica: Api) -> None:
    node, key = await api.approved_node(), new_key()
    answers = await asyncio.gather(*(install(each, node, key) for each in (api, replica) * 5))
    assert {answer.status_code for answer in answers} == {202}
    [job] = {answer.json()["op_id"] for answer in answers}
    assert await listed(api, node) == [job]


async def test_removal_of_another_backend_with_the_same_key_is_refused(api: Api) -> None:
    node, key = await api.approved_node(), new_key()
    first, other = [await start(api, node, key, kind="remove", backend=backend) for backend in ("a", "b")]
    assert (first.status_code, other.status_code) == (202, 409)
    assert other.json()["facts"]["op_id"] == first.json()["op_id"]
    assert "Idempotency-Key" in other.json()["detail"]


async def test_a_repeated_request_says_that_it_is_one_and_joins_nothing(api: Api) -> None:
    """The same answer as the first time, also under the node's other name."""
    node, key = await api.approved_node(), new_key()
    first = (await install(api, node, key)).json()
    again = (await install(api, {"id": node["name"]}, key)).json()
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert (first["joined"], again["joined"]) == (False, False)
    assert "was accepted before" in again["message"]
    changed = {"message", "repeated"}
    assert {name: again[name] for name in again.keys() - changed} == {
        name: first[name] for name in first.keys() - changed
    }


@pytest.mark.parametrize(
    "other", [{"version": "1"}, {"start": True}, {"deadline_s": 60}, {"reason": "for another reason"}]
)
async def test_every_part_of_the_body_counts(api: Api, other: dict[str, Any]) -> None:
    node, key = await api.approved_node(), new_key()
    first, second = await install(api, node, key), await install(api, node, key, **other)
    assert (first.status_code, second.status_code) == (202, 409)


async def test_a_batch_with_another_body_and_the_same_key_is_refused(api: Api) -> None:
    one, two = await api.approved_node(), await api.approved_node()
    key, body = new_key(), {"backend": "echo", "nodes": [one["name"]]}
    first, again = await post(api, "/api/v1/batches", key, **body), await post(api, "/api/v1/batches", key, **body)
    assert (first.status_code, again.status_code) == (202, 202)
    assert (again.json()["batch_id"], again.json()["operations"]) == (
        first.json()["batch_id"],
        first.json()["operations"],
    )
    assert again.json()["repeated"]
    for other in ({"nodes": [two["name"]]}, {"version": "1"}, {"max_parallel": 3}):
        refused = await post(api, "/api/v1/batches", key, **{**body, **other})
        assert (refused.status_code, refused.json()["facts"].get("op_id")) == (409, first.json()["batch_id"])


async def test_batches_at_the_same_instant_on_two_replicas_are_one(api: Api, replica: Api) -> None:
    node, key = await api.approved_node(), new_key()
    body = {"backend": "echo", "nodes": [node["name"]]}
    answers = await asyncio.gather(*(post(each, "/api/v1/batches", key, **body) for each in (api, replica) * 3))
    assert {answer.status_code for answer in answers} == {202}
    [batch] = {answer.json()["batch_id"] for answer in answers}
    assert len({str(answer.json()["operations"]) for answer in answers}) == 1
    known = [each["batch_id"] for each in (await api.http.get("/api/v1/batches")).json()["items"]]
    assert known.count(batch) == 1


async def test_one_key_is_one_request_on_whatever_route(api: Api) -> None:
    node, key = await api.approved_node(), new_key()
    first = await install(api, node, key)
    removal = await start(api, node, key, kind="remove", backend="echo")
    batch = await post(api, "/api/v1/batches", key, backend="echo", nodes=[node["name"]])
    assert (first.status_code, removal.status_code, batch.status_code) == (202, 409, 409)


FAN_OUT = {
    "/api/backends/install/echo": None,
    "/api/backends/upgrade/echo": None,
    "/api/backends/delete/echo": None,
    "/backends/apply": {"id": "echo"},
    "/backends/upgrade/echo": None,
    "/backends/delete/echo": None,
}


@pytest.mark.parametrize("path", FAN_OUT)
async def test_localais_routes_take_a_key(api: Api, settings: ControlSettings, path: str) -> None:
    await has_echo(settings, await api.approved_node())
    key, body = new_key(), FAN_OUT[path]
    answers = [await api.http.post(path, json=body, headers=key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    first, again = (answer.json() for answer in answers)
    assert first["uuid"] == again["uuid"]
    other = await api.http.post("/backends/delete/another", headers=key)
    assert other.status_code == 409


STARTING = re.compile(r"^/api/nodes/.*/backends/(install|upgrade|delete)$|/retry$|^/api/v1/(operations|batches)$")
FAN_OUT_ROUTES = re.compile(
    r"^(/api)?/backends/(install|upgrade|delete|apply|system/delete)(-external)?(/\{backend\})?$"
)


def test_every_route_that_starts_something_takes_the_key_itself() -> None:
    """The id of a job is reserved with the key; a route that is added later and starts jobs is found by its name."""
    starting = {each.path for each in POSTS if STARTING.search(each.path) or FAN_OUT_ROUTES.search(each.path)}
    assert len(starting) == 15
    assert {each.path for each in POSTS if takes_key(each.dependant)} == starting


async def test_an_upgrade_of_what_is_not_installed_is_refused_and_says_what_to_do(
    api: Api, settings: ControlSettings
) -> None:
    """S55."""
    node = await api.approved_node()
    async with opened(settings.database_url) as database:
        await InventoryTable(database).replace(node["id"], [], asked_at=datetime.now(UTC), boot_id="")
    answer = await start(api, node, new_key(), kind="upgrade", backend="echo")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "not_installed")
    assert "nodesmith backends install" in problem["remedy"]
    assert await listed(api, node) == []


async def test_a_retry_of_a_batch_says_which_members_it_means(api: Api) -> None:
    unknown = await api.http.post("/api/v1/batches/nothing/retry", json={"select": "succeeded"})
    assert unknown.status_code == 400
    node = await api.approved_node()
    batch = (await post(api, "/api/v1/batches", new_key(), backend="echo", nodes=[node["name"]])).json()["batch_id"]
    for select, said in (("failed", "failed"), ("cancelled", "cancelled"), ("all_unfinished", "without success")):
        refused = await api.http.post(f"/api/v1/batches/{batch}/retry", json={"select": select})
        assert (refused.status_code, said in refused.json()["detail"]) == (409, True)

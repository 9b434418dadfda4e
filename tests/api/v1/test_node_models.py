"""Models and logs of a node over HTTP: the node's reports, and the requests to the node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.api.models import NodeWithModels, RefusingNode, UnloadingNode
from tests.api.node import on_the_bus
from tests.api.station import Api, bearer, until
from tests.deadlines import HANGS_S
from tests.fakes.node import SimulatedNode


@pytest.fixture(scope="module")
async def node(api: Api) -> dict[str, Any]:
    return await api.approved_node()


@pytest.fixture
async def handlers(node: dict[str, Any]) -> AsyncIterator[NodeWithModels]:
    handlers = NodeWithModels()
    async with on_the_bus(node, handlers):
        yield handlers


async def models(api: Api, node: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await api.http.get(f"/api/v1/nodes/{node['id']}/models")
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


@pytest.mark.usefixtures("handlers")
async def test_models_are_reported_by_the_node(api: Api, node: dict[str, Any]) -> None:
    reported = await models(api, node)
    assert [(each["model_name"], each["replica_index"]) for each in reported] == [
        ("llama", 0),
        ("llama", 1),
        ("echo", 0),
    ]
    assert reported[2].items() >= {"node_name": node["name"], "state": "loaded", "version": "2"}.items()


@pytest.mark.usefixtures("handlers")
async def test_models_of_all_healthy_nodes_are_one_list(api: Api, node: dict[str, Any]) -> None:
    beat = f"/api/node/{node['id']}/heartbeat"
    silent = await api.approved_node()
    for each in (node, silent):
        path = beat.replace(node["id"], each["id"])
        assert (await api.http.post(path, json={}, headers=bearer(each["api_token"]))).status_code == 200
    found = await until(lambda: api.http.get("/api/v1/models"), lambda answer: bool(answer.json()["items"]))
    assert {each["node_id"] for each in found.json()["items"]} == {node["id"]}, "who does not answer is left out"


async def test_every_replica_is_unloaded_by_its_own_address(
    api: Api, node: dict[str, Any], handlers: NodeWithModels
) -> None:
    path = f"/api/v1/nodes/{node['id']}/models/unload"
    answer = await api.http.post(path, json={"model_name": "llama", "reason": "memory is short"})
    assert (answer.status_code, answer.json()) == (200, {"message": "model unloaded"})
    assert [(what, question.address) for what, question in handlers.asked] == [
        ("unload", "127.0.0.1:51000"),
        ("unload", "127.0.0.1:51001"),
    ]
    again = await api.http.post(path, json={"model_name": "not running"})
    assert (again.status_code, len(handlers.asked)) == (200, 2)
    entries = (await api.http.get("/api/v1/audit", params={"action": "nodes.models.unload"})).json()["items"]
    assert (entries[-1]["target"], entries[-1]["reason"]) == (node["name"], "memory is short")
    assert entries[-1]["after"] == {"model_name": "llama"}


async def test_a_model_is_unloaded_on_every_node_that_has_it_and_a_node_that_fails_is_named(api: Api) -> None:
    """S42: every replica is unloaded; a node that fails is skipped and keeps the model. Superseded where a node can
    answer: the API asks the node, so that the result is true."""
    holder, worker, stubborn, broken, other, away = [
        await api.approved_node(**said) for said in ({}, {"protocol": 1, "address": "10.0.0.9:50051"}, {}, {}, {}, {})
    ]
    emptied = UnloadingNode()
    handlers_by_node: list[SimulatedNode] = [
        UnloadingNode(),
        emptied,
        RefusingNode(),
        RefusingNode(says_what_runs=False),
        SimulatedNode(),
    ]
    async with AsyncExitStack() as links:
        for node, handlers in zip((holder, worker, stubborn, broken, other), handlers_by_node, strict=True):
            await links.enter_async_context(on_the_bus(node, handlers))
        body = {"model_name": "llama", "reason": "memory is short"}
        answer = await api.http.post("/api/v1/models/unload", json=body)
        assert answer.status_code == 200, answer.text
        results = {each["node_id"]: each for each in answer.json()["nodes"]}
        assert [(results[node["id"]]["result"], results[node["id"]]["replicas"]) for node in (holder, worker)] == [
            ("unloaded", 2),
            ("unloaded", 2),
        ]
        assert (results[stubborn["id"]]["result"], results[stubborn["id"]]["replicas"]) == ("failed", 0)
        assert results[stubborn["id"]]["warning"] == f"Node {stubborn['name']}: It does not end."
        assert (results[broken["id"]]["result"], results[away["id"]]["result"]) == ("unknown", "away")
        assert "The disk is gone." in results[broken["id"]]["warning"]
        assert other["id"] not in results, "it never had it"
        kept = sorted([stubborn["name"], broken["name"]])
        assert f"llama is unloaded on 2 nodes. 2 may still have it: {kept[0]}, {kept[1]}." in answer.json()["message"]
        assert (await asyncio.wait_for(emptied.stopped.get(), HANGS_S)).backend == "llama"
        left = {node["id"]: [each["model_name"] for each in await models(api, node)] for node in (holder, stubborn)}
        assert left == {holder["id"]: ["echo"], stubborn["id"]: ["llama", "llama", "echo"]}
    [entry] = (await api.http.get("/api/v1/audit", params={"action": "models.unload"})).json()["items"]
    assert (entry["target"], entry["reason"]) == ("llama", "memory is short")
    assert entry["after"]["unloaded"] == sorted([holder["name"], worker["name"]])
    assert entry["after"]["failed"] == [stubborn["name"]]


@pytest.mark.usefixtures("handlers")
async def test_a_model_that_runs_nowhere_is_unloaded_already(api: Api, node: dict[str, Any]) -> None:
    """S42: no node is a success, and nobody is results anything."""
    answer = await api.http.post("/api/v1/models/unload", json={"model_name": "nobody has it"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["message"].startswith("Nothing to do: nobody has it runs on no node that answers.")
    assert node["id"] not in {each["node_id"] for each in answer.json()["nodes"]}
    assert {each["result"] for each in answer.json()["nodes"]} <= {"away"}


async def test_one_process_is_stopped_where_the_node_says_it_is(
    api: Api, node: dict[str, Any], handlers: NodeWithModels
) -> None:
    path = f"/api/v1/nodes/{node['id']}/models/stop"
    answer = await api.http.post(path, json={"model_name": "llama", "replica_index": 1, "force": True})
    assert answer.json() == {
        "message": f"llama#1 on {node['name']} is stopped",
        "process_key": "llama#1",
        "was_running": True,
    }
    ((_, question),) = handlers.asked
    assert (question.process_key, question.expected_address, question.force) == ("llama#1", "127.0.0.1:51001", True)
    gone = (await api.http.post(path, json={"model_name": "gone"})).json()
    assert (gone["was_running"], gone["message"]) == (False, f"gone#0 did not run on {node['name']}")


async def test_a_model_is_unloaded_before_its_files_are_deleted(
    api: Api, node: dict[str, Any], handlers: NodeWithModels
) -> None:
    answer = await api.http.post(f"/api/v1/nodes/{node['id']}/models/delete", json={"model_name": "echo"})
    assert (answer.status_code, answer.json()) == (200, {"message": "model deleted from node"})
    assert [what for what, _ in handlers.asked] == ["unload", "delete"]


@pytest.mark.parametrize("order", ["unload", "stop", "delete"])
async def test_node_refusal_is_reported_with_its_message(
    api: Api, node: dict[str, Any], handlers: NodeWithModels, order: str
) -> None:
    """S44: a negative reply is an error."""
    handlers.refusal = "It does not end."
    answer = await api.http.post(f"/api/v1/nodes/{node['id']}/models/{order}", json={"model_name": "llama"})
    assert (answer.status_code, answer.json()["code"]) == (409, "node_cannot")
    assert answer.json()["detail"] == f"Node {node['name']}: It does not end."
    assert "error" not in answer.json()


@pytest.mark.parametrize(
    "path", ["nodes/{id}/models/unload", "nodes/{id}/models/stop", "nodes/{id}/models/delete", "models/unload"]
)
async def test_model_name_is_required(api: Api, node: dict[str, Any], path: str) -> None:
    answer = await api.http.post(f"/api/v1/{path.format(id=node['id'])}", json={"model_name": ""})
    assert (answer.status_code, answer.json()["facts"]) == (400, {"field": "model_name"})


async def test_logs_are_read_from_the_end_and_followed(
    api: Api, node: dict[str, Any], handlers: NodeWithModels
) -> None:
    path = f"/api/v1/nodes/{node['id']}/backends/echo/logs"
    tail = (await api.http.get(path, params={"lines": 1})).json()
    assert tail == {
        "node_name": node["name"],
        "key": "echo#0",
        "lines": ["two"],
        "cursor": 8,
        "keys": ["echo#0", "llama#0"],
    }
    following = asyncio.create_task(api.http.get(path, params={"cursor": 8, "wait_s": 20}))
    handlers.more.set()
    came = (await following).json()
    assert (came["lines"], came["cursor"]) == (["three"], 14)
    unknown = await api.http.get(f"/api/v1/nodes/{node['id']}/backends/nothing/logs")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_backend")
    assert node["name"] in unknown.json()["detail"]


async def test_logs_are_withheld_from_a_token_revoked_during_the_wait(
    api: Api, node: dict[str, Any], handlers: NodeWithModels
) -> None:
    made = (await api.http.post("/api/v1/tokens", json={"name": "follower", "role": "viewer"})).json()
    path, query = f"/api/v1/nodes/{node['id']}/backends/echo/logs", {"cursor": 10, "wait_s": 20}
    following = asyncio.create_task(api.http.get(path, params=query, headers=bearer(made["token"])))
    await asyncio.wait_for(handlers.waits.wait(), 20)
    assert (await api.http.delete(f"/api/v1/tokens/{made['id']}")).status_code == 200
    handlers.more.set()
    assert (await following).status_code == 401


async def test_a_node_that_is_away_is_named(api: Api) -> None:
    away = await api.approved_node()
    for path in ("models", "backends/echo/logs"):
        answer = await api.http.get(f"/api/v1/nodes/{away['id']}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (503, "node_away"), path
        assert away["name"] in answer.json()["detail"]


async def test_an_agent_node_runs_no_models(api: Api) -> None:
    agent = await api.approved_node(node_type="agent")
    assert await models(api, agent) == []
    refused = await api.http.post(f"/api/v1/nodes/{agent['id']}/models/unload", json={"model_name": "x"})
    assert (refused.status_code, refused.json()["code"]) == (409, "node_not_for_backends")

"""LocalAI's running models and logs of a node."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from tests.api.models import NodeWithModels
from tests.api.node import on_the_bus
from tests.api.station import Api, bearer, until
from tests.deadlines import HANGS_S


@pytest.fixture(scope="module")
async def node(api: Api) -> dict[str, Any]:
    return await api.approved_node()


@pytest.fixture
async def handlers(node: dict[str, Any]) -> AsyncIterator[NodeWithModels]:
    handlers = NodeWithModels()
    async with on_the_bus(node, handlers):
        yield handlers


@pytest.mark.usefixtures("handlers")
async def test_models_are_reported_by_the_node_in_localais_format(api: Api, node: dict[str, Any]) -> None:
    models = (await api.http.get(f"/api/nodes/{node['name']}/models")).json()
    echo = next(each for each in models if each["model_name"] == "echo")
    said_at = datetime.fromisoformat(echo.pop("updated_at"))
    assert datetime.fromisoformat(echo.pop("created_at")) == said_at
    assert echo == {
        "id": f"{node['id']}/echo#0",
        "node_id": node["id"],
        "node_name": node["name"],
        "model_name": "echo",
        "replica_index": 0,
        "address": "127.0.0.1:51007",
        "state": "loaded",
        "in_flight": 0,
        "backend_type": "echo",
        "version": "2",
    }
    assert len(models) == 3
    itself = await api.http.get(f"/api/node/{node['id']}/models", headers=bearer(node["api_token"]))
    assert [each["id"] for each in itself.json()] == [each["id"] for each in models]


@pytest.mark.usefixtures("handlers")
async def test_localais_log_routes_have_its_shapes(api: Api, node: dict[str, Any]) -> None:
    path = f"/api/nodes/{node['id']}/backend-logs"
    assert (await api.http.get(path)).json() == ["echo#0", "llama#0"]
    assert (await api.http.get(f"{path}/echo%230")).json() == [
        {"timestamp": None, "stream": "stdout", "text": text} for text in ("one", "two")
    ]


async def test_unload_on_a_localai_worker_also_stops_the_process(api: Api) -> None:
    worker = await api.approved_node(protocol=1, address="10.0.0.9:50051", http_address="10.0.0.9:50050")
    handlers = NodeWithModels()
    async with on_the_bus(worker, handlers):
        answer = await api.http.post(f"/api/nodes/{worker['id']}/models/unload", json={"model_name": "echo"})
        assert answer.status_code == 200, answer.text
        assert (await asyncio.wait_for(handlers.stopped.get(), HANGS_S)).backend == "echo"
        logs = await api.http.get(f"/api/nodes/{worker['id']}/backend-logs")
        assert (logs.status_code, logs.json()["code"]) == (409, "node_cannot")
        assert "10.0.0.9:50050" in logs.json()["detail"]


@pytest.mark.usefixtures("handlers")
async def test_models_of_all_healthy_nodes_are_one_list(api: Api, node: dict[str, Any]) -> None:
    path = f"/api/node/{node['id']}/heartbeat"
    assert (await api.http.post(path, json={}, headers=bearer(node["api_token"]))).status_code == 200
    found = await until(lambda: api.http.get("/api/nodes/models"), lambda answer: bool(answer.json()))
    assert [each["model_name"] for each in found.json()] == ["llama", "llama", "echo"]


@pytest.mark.parametrize(("order", "said"), [("unload", "model unloaded"), ("delete", "model deleted from node")])
async def test_model_routes_answer_with_localais_messages(
    api: Api, node: dict[str, Any], handlers: NodeWithModels, order: str, said: str
) -> None:
    """S44: a negative reply is an error."""
    path = f"/api/nodes/{node['id']}/models/{order}"
    answer = await api.http.post(path, json={"model_name": "llama"})
    assert (answer.status_code, answer.json()) == (200, {"message": said})
    handlers.refusal = "It does not end."
    refused = await api.http.post(path, json={"model_name": "llama"})
    assert (refused.status_code, refused.json()["code"]) == (409, "node_cannot")
    message = f"Node {node['name']}: It does not end."
    assert refused.json()["error"] == {"code": 409, "message": message, "type": "node_error"}
    unnamed = await api.http.post(path, json={"model_name": ""})
    assert (unnamed.status_code, unnamed.json()["error"]["type"]) == (400, "node_error")


async def test_an_agent_node_runs_no_models(api: Api) -> None:
    agent = await api.approved_node(node_type="agent")
    assert (await api.http.get(f"/api/nodes/{agent['id']}/models")).json() == []


async def test_a_node_that_is_away_is_named(api: Api) -> None:
    away = await api.approved_node()
    for path in ("models", "backend-logs"):
        answer = await api.http.get(f"/api/nodes/{away['id']}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (503, "node_away"), path
        assert away["name"] in answer.json()["error"]["message"]
    itself = await api.http.get(f"/api/node/{away['id']}/models", headers=bearer(away["api_token"]))
    assert (itself.status_code, itself.json()) == (200, []), "a node that goes does not wait for itself"

"""LocalAI's scheduling rules and load status: paths, fields and status codes."""

import json
import secrets
from typing import Any

import pytest

from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.deployment import LoadSpec, Rule
from nodesmith.domain.operation import State
from nodesmith.domain.placement import Choice
from nodesmith.domain.tick import PlannedPlacement, Unsatisfied
from nodesmith.store.clock import utc_now
from nodesmith.store.models.placing import ReplicaPlacing
from tests.api.localai.test_contract import RULE, Body, keys
from tests.api.station import Api
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition

PATH = "/api/nodes/scheduling"
LOADING = Body(keys("model state node progress bytes_sent total_bytes file_index total_files"), keys("eta_seconds"))


def named() -> str:
    return f"model-{secrets.token_hex(3)}"


async def set_rule(api: Api, **fields: Any) -> dict[str, Any]:
    answer = await api.http.post(PATH, json=fields)
    assert answer.status_code == 200, answer.text
    RULE.check(answer.json())
    return dict(answer.json())


async def test_rule_is_set_read_and_deleted(api: Api) -> None:
    """R62-R66: a rule may exist before its model; deleting a missing one is not an error."""
    name = named()
    made = await set_rule(
        api, model_name=name, node_selector={"zone": "a", "tier": "gold"}, min_replicas=1, max_replicas=4
    )
    assert json.loads(made["node_selector"]) == {"tier": "gold", "zone": "a"}, "a JSON text, as LocalAI sends it"
    assert (await api.http.get(f"{PATH}/{name}")).json() == made
    assert made in (await api.http.get(PATH)).json()
    for _ in range(2):
        assert (await api.http.delete(f"{PATH}/{name}")).status_code == 204
    gone = await api.http.get(f"{PATH}/{name}")
    assert (gone.status_code, gone.json()["error"]["message"]) == (404, "no scheduling config for model")


async def test_routing_fields_keep_their_value_and_the_others_are_replaced(api: Api) -> None:
    name = named()
    routing = {
        "route_policy": "prefix_cache",
        "balance_abs_threshold": 3,
        "balance_rel_threshold": 2.0,
        "min_prefix_match": 0.5,
    }
    await set_rule(api, model_name=name, node_selector={"zone": "a"}, min_replicas=1, **routing)
    changed = await set_rule(api, model_name=name, max_replicas=2)
    assert changed.items() >= routing.items()
    assert (changed["min_replicas"], changed["max_replicas"]) == (0, 2)
    assert "node_selector" not in changed


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model_name": "-"},
        {"model_name": "m", "min_replicas": -1},
        {"model_name": "m", "min_replicas": 3, "max_replicas": 2},
        {"model_name": "m", "spread_all": True, "min_replicas": 1},
        {"model_name": "m", "route_policy": "random"},
        {"model_name": "m", "balance_abs_threshold": -1},
        {"model_name": "m", "balance_rel_threshold": 0.5},
        {"model_name": "m", "min_prefix_match": 2},
    ],
)
async def test_bad_rule_is_refused(api: Api, fields: dict[str, Any]) -> None:
    answer = await api.http.post(PATH, json=fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


async def test_rule_of_a_deployment_is_the_same_rule(api: Api) -> None:
    """R70, R71: with the cooldown of the scheduler."""
    name, table = named(), api.deps.deployments.table
    await table.deploy(LoadSpec(model=name, revision=0, backend="echo"), Rule(selector="zone in (a,b)", min_replicas=1))
    await table.note_unsatisfied([Unsatisfied(name, 3, NOON, "no node fits")])
    found = (await api.http.get(f"{PATH}/{name}")).json()
    assert (found["unsatisfiable_ticks"], found["node_selector"]) == (3, "zone in (a,b)")
    assert found["unsatisfiable_until"].startswith("2026-11-16T12:00:00")
    await set_rule(api, model_name=name, min_replicas=2, max_replicas=2)
    deployed = (await api.http.get(f"/api/v1/deployments/{name}")).json()
    assert (deployed["min_replicas"], deployed["unsatisfiable_until"]) == (2, None)


async def test_load_status_tells_how_far_a_load_is(api: Api) -> None:
    """404 when nothing is loading; 3.6's loading object while it is."""
    name, node = named(), await api.approved_node(total_ram=2**33, available_ram=2**33)
    now = utc_now()
    await api.deps.nodes.heartbeats([Heartbeat(node_id=node["id"])], now)
    await api.deps.nodes.touch_listening(now)
    for path in (f"/api/models/{name}/load-status", f"/api/v1/deployments/{name}/load-status"):
        assert (await api.http.get(path)).status_code == 404
    model = await api.deps.deployments.table.deploy(LoadSpec(model=name, revision=0, backend="echo"), Rule())
    placing = ReplicaPlacing(api.deps.nodes._database)
    placed = await placing.place(model, PlannedPlacement(name, Choice(node["id"], node["name"], 0), 1))
    assert placed is not None
    request = a_request(op_id=placed.op_id, node_id=node["id"])
    await api.deps.operations.record(transition(request, State.RUNNING))
    found = (await api.http.get(f"/api/models/{name}/load-status")).json()
    LOADING.check(found)
    assert (found["model"], found["progress"]) == (name, 0.0)

"""Pending work, bulk orders, and emptying the history."""

import secrets
from typing import Any

import pytest

from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason, State
from tests.api.records import recorded
from tests.api.station import Api

PATH = "/api/v1/operations"


async def ids(api: Api, **query: Any) -> list[str]:
    return [entry["op_id"] for entry in (await api.http.get(PATH, params=query)).json()["items"]]


async def test_clearing_the_history_keeps_what_needs_attention_and_is_audited(api: Api) -> None:
    await recorded(api, State.SUCCEEDED, node_id="h3")
    failed = await recorded(api, State.FAILED, node_id="h3")
    answer = await api.http.delete(f"{PATH}/history")
    assert (answer.status_code, answer.json()["cleared"] > 0) == (200, True)
    assert await ids(api, node="h3", scope="ended") == [failed]
    [entry] = (await api.http.get("/api/v1/audit?target=history")).json()["items"][:1]
    assert (entry["actor"], entry["action"]) == ("admin", "operations.history.remove")
    assert entry["after"] == answer.json()


async def test_pending_work_is_listed_per_node_and_per_backend(api: Api) -> None:
    """H34: the queue is visible."""
    backend = f"b-{secrets.token_hex(4)}"
    await recorded(api, State.WAITING, node_id="p1", backend=backend, reason=Reason.NODE_AWAY)
    await recorded(api, State.QUEUED, node_id="p1", backend=backend)
    await recorded(api, State.RUNNING, node_id="p2", backend=backend)
    pending = (await api.http.get(f"{PATH}/pending")).json()
    nodes = {work["node_id"]: work for work in pending["nodes"]}
    assert (nodes["p1"]["total"], nodes["p1"]["reasons"]) == (2, {"node_away": 1})
    [mine] = [work for work in pending["backends"] if work["name"] == backend]
    assert (mine["total"], mine["states"]) == (3, {"waiting": 1, "queued": 1, "running": 1})
    assert pending["total"] == sum(work["total"] for work in pending["nodes"])


async def test_many_are_cancelled_by_filter_after_a_preview(api: Api) -> None:
    node = await api.approved_node()
    started = set()
    for version in ("1", "2"):
        body = {"uri": f"http://source.test/b{version}.tar.gz", "sha256": "0" * 64}
        accepted = await api.http.post(PATH, json={"kind": "install", "node": node["id"], **body})
        started.add(accepted.json()["op_id"])
    await recorded(api, State.SUCCEEDED, node_id=node["id"])
    looked = (await api.http.post(f"{PATH}/cancel", json={"node": node["name"], "preview": True})).json()
    assert (looked["preview"], looked["matched"], looked["accepted"]) == (True, 2, 0)
    assert {each["op_id"] for each in looked["operations"]} == started
    done = await api.http.post(f"{PATH}/cancel", json={"node": node["name"], "reason": "wrong rack"})
    assert (done.json()["matched"], done.json()["accepted"]) == (2, 2)
    [entry] = (await api.http.get("/api/v1/audit?target=operations")).json()["items"][:1]
    assert (entry["reason"], entry["after"]) == ("wrong rack", {"node": node["name"], "matched": 2, "accepted": 2})


async def test_a_removal_on_its_node_is_left_out_of_a_bulk_cancel_and_named(api: Api) -> None:
    """S60: a running removal is not cancellable, whoever asks."""
    op_id = await recorded(api, State.RUNNING, kind=Kind.REMOVE, node_id="r1")
    done = (await api.http.post(f"{PATH}/cancel", json={"node": "r1"})).json()
    assert (done["matched"], done["accepted"]) == (1, 0)
    assert f"Operation {op_id} is removing" in done["operations"][0]["note"]


async def test_many_are_dismissed_by_filter(api: Api) -> None:
    failed = [await recorded(api, State.DEAD_LETTER, node_id="d1") for _ in range(2)]
    waiting = await recorded(api, State.WAITING, node_id="d1")
    looked = (await api.http.post(f"{PATH}/dismiss", json={"node": "d1", "preview": True})).json()
    assert {each["op_id"] for each in looked["operations"]} == set(failed)
    done = (await api.http.post(f"{PATH}/dismiss", json={"node": "d1", "state": "dead_letter"})).json()
    assert (done["matched"], done["accepted"]) == (2, 2)
    assert await ids(api, node="d1") == [waiting]


@pytest.mark.parametrize("order", ["cancel", "dismiss"])
@pytest.mark.parametrize("body", [{}, {"preview": True}, {"state": "sleeping"}, {"node": "a\0b"}])
async def test_an_order_to_everything_is_refused(api: Api, order: str, body: dict[str, Any]) -> None:
    assert (await api.http.post(f"{PATH}/{order}", json=body)).status_code == 400

"""LocalAI's job status, and the removals that it waits for."""

import asyncio
import dataclasses
import secrets
from typing import Any

import pytest

from nodesmith.contracts.nats.messages import Progress
from nodesmith.contracts.temporal.batches import (
    BatchInput,
    BatchMember,
    BatchState,
    CloseBatch,
    MemberVerdict,
    Target,
    member_op_id,
)
from nodesmith.domain.operation import Phase, Reason, State
from tests.api.records import recorded
from tests.api.station import Api, served, until
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        (State.QUEUED, None, {"processed": False, "queued": False}),
        (State.RUNNING, None, {"processed": False, "message": "running on the node"}),
        (State.SUCCEEDED, None, {"processed": True, "completed": True, "progress": 100, "message": "completed"}),
        (State.CANCELLED, Reason.REQUESTED, {"processed": True, "message": "cancelled: cancelled by request"}),
        (State.FAILED, Reason.NO_DISK, {"processed": True, "error": "failed: not enough disk space on the node"}),
        (State.EXPIRED, Reason.NODE_NEVER_CAME, {"error": "expired: the node did not connect in time"}),
        (State.DEAD_LETTER, Reason.ATTEMPTS_EXHAUSTED, {"error": "gave up: all attempts failed"}),
    ],
)
async def test_job_status_is_localais(
    api: Api, state: State, reason: Reason | None, expected: dict[str, object]
) -> None:
    """S10: what was cancelled is processed, but neither completed nor a success."""
    op_id = await recorded(api, state, reason=reason)
    status = (await api.http.get(f"/api/backends/job/{op_id}")).json()
    assert expected.items() <= status.items()
    assert (status["galleryElementName"], status["deletion"], status["queued"]) == ("echo", False, False)
    assert ("error" in status) == ("error" in expected)
    assert ("completed" in status) == ("completed" in expected)


async def test_unknown_job_is_reported_as_queued(api: Api) -> None:
    answer = await api.http.get("/api/backends/job/nobody")
    assert answer.status_code == 200
    assert answer.json() == {
        "progress": 0,
        "message": "Operation queued",
        "galleryElementName": "",
        "processed": False,
        "deletion": False,
        "queued": True,
    }


async def op_status(api: Api, job_id: str) -> dict[str, Any]:
    answer = await api.http.get(f"/backends/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    status: dict[str, Any] = answer.json()
    return status


async def test_status_of_a_running_operation_is_localais(api: Api) -> None:
    """S58: the node's own line goes with it."""
    op_id = await recorded(api, State.RUNNING, node_id="s1")
    tick = Progress(op_id=op_id, node_id="s1", phase=Phase.DOWNLOADING, bytes_done=5, bytes_total=10, percentage=50)
    await api.deps.operations.write_gauges([tick])
    assert await op_status(api, op_id) == {
        "deletion": False,
        "file_name": "",
        "processed": False,
        "message": "downloading on the node",
        "progress": 50.0,
        "phase": "downloading",
        "current_bytes": 5,
        "total_bytes": 10,
        "file_size": "",
        "downloaded_size": "",
        "gallery_element_name": "echo",
        "cancelled": False,
        "cancellable": True,
        "nodes": [
            {
                "node_id": "s1",
                "node_name": "s1-name",
                "status": "downloading",
                "percentage": 50.0,
                "phase": "downloading",
            }
        ],
    }


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (State.QUEUED, {"phase": "queued", "processed": False, "cancellable": True}),
        (State.STILL_INSTALLING, {"processed": False}),
        (State.SUCCEEDED, {"processed": True, "progress": 100.0, "message": "completed", "cancelled": False}),
        (State.CANCELLED, {"processed": True, "cancelled": True, "cancellable": False}),
        (State.FAILED, {"processed": True, "error": "failed", "cancellable": False}),
    ],
)
async def test_status_of_an_operation_tells_every_state(api: Api, state: State, expected: dict[str, object]) -> None:
    """S10: a cancelled one is no success; promise 4: still installing is neither processed nor an error."""
    status = await op_status(api, await recorded(api, state))
    assert expected.items() <= status.items()
    assert ("error" in status) == ("error" in expected)


async def test_status_of_a_batch_names_the_nodes_that_failed_and_no_others(api: Api) -> None:
    """S52, S53, S54: queued is no failure, still installing no success; only hard failures make the error."""
    batch_id, wanted = f"b-{secrets.token_hex(4)}", a_request().wanted
    targets = tuple(Target(node_id=name, node_name=name) for name in ("n1", "n2", "n3", "n4", "n5"))
    await api.deps.batches.open(BatchInput(batch_id=batch_id, wanted=wanted, targets=targets, created_at=NOON))
    states = {"n1": State.FAILED, "n2": State.SUCCEEDED, "n3": State.WAITING, "n5": State.STILL_INSTALLING}
    for node, state in states.items():
        op_id = member_op_id(batch_id, node)
        reason = {State.FAILED: Reason.NO_DISK, State.WAITING: Reason.NODE_AWAY}.get(state)
        await recorded(api, state, op_id=op_id, node_id=node, batch_id=batch_id, reason=reason)
    running = await op_status(api, batch_id)
    assert (running["processed"], "error" in running) == (False, False)
    shown = [node["status"] for node in running["nodes"]]
    assert shown == ["error", "success", "queued", "queued", "running_on_worker"]
    lost = BatchMember(
        node_id="n4", node_name="n4", verdict=MemberVerdict.NOT_STARTED, detail="batch stopped after 1 failures"
    )
    await api.deps.batches.close(CloseBatch(batch_id=batch_id, state=BatchState.STOPPED, at=NOON, members=(lost,)))
    ended = await op_status(api, batch_id)
    assert ended["error"] == "n1: failed: not enough disk space on the node; n4: batch stopped after 1 failures"
    assert (ended["processed"], ended["cancellable"], ended["progress"] < 100) == (True, False, True)


async def test_an_unknown_id_is_a_500_in_localais_shape(api: Api) -> None:
    answer = await api.http.get("/backends/jobs/nobody")
    assert answer.status_code == 500
    assert answer.json()["error"] == {"code": 500, "message": "could not find any status for ID", "type": ""}


async def test_removal_that_outlasts_the_wait_continues_with_a_504(api: Api) -> None:
    """H28, promise 4: the answer is neither a success nor a failure, and names the operation."""
    node = await api.approved_node()
    async with served(dataclasses.replace(api.deps, patience_s=0.2)) as hasty:
        answer = await hasty.http.post(f"/api/nodes/{node['id']}/backends/delete", json={"backend": "echo"})
    assert answer.status_code == 504
    [entry] = (await api.http.get(f"/api/v1/operations?node={node['id']}")).json()["items"]
    assert (entry["op_id"], entry["kind"]) == (answer.json()["facts"]["op_id"], "remove")
    assert answer.json()["error"]["type"] == "node_error"


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.DEAD_LETTER])
async def test_a_removal_that_did_not_happen_is_a_500_that_says_why(api: Api, state: State) -> None:
    """G7: with LocalAI's words around the node's own, and the operation named."""
    node = await api.approved_node()
    path = f"/api/nodes/{node['id']}/backends/delete"
    asking = asyncio.create_task(api.http.post(path, json={"backend": "echo"}))
    [op_id] = await until(lambda: open_on(api, node["id"]), bool)
    request = await api.deps.operations.request(op_id)
    assert request is not None
    said = transition(request, state, reason=Reason.NODE_ERROR, detail="the disk is read-only", ended_at=NOON)
    await api.deps.operations.record(said)
    answer = await asking
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    problem = answer.json()
    assert (problem["code"], problem["facts"]) == ("operation_failed", {"op_id": op_id, "state": state})
    assert problem["detail"].startswith("backend deletion failed: ")
    assert "the disk is read-only" in problem["detail"]
    assert problem["error"]["message"] == problem["detail"]


async def open_on(api: Api, node_id: str) -> list[str]:
    """Removals of that node that somebody waits for."""
    listed = (await api.http.get(f"/api/v1/operations?node={node_id}")).json()["items"]
    return [entry["op_id"] for entry in listed if entry["kind"] == "remove"]


async def test_a_removal_needs_a_name_and_a_node(api: Api) -> None:
    node = await api.approved_node()
    assert (await api.http.post(f"/api/nodes/{node['id']}/backends/delete", json={})).status_code == 400
    assert (await api.http.post("/api/nodes/nobody/backends/delete", json={"backend": "echo"})).status_code == 404

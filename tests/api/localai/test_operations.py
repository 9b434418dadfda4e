"""LocalAI's operations: the live list, cancel, pause, dismiss and the history."""

from typing import Any

from nodesmith.contracts.nats.messages import Progress
from nodesmith.contracts.temporal.batches import member_op_id
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason, State
from tests.api.records import recorded
from tests.api.station import Api


async def live(api: Api, *nodes: str) -> list[dict[str, Any]]:
    """The entries of these nodes, in the order of the list."""
    listed = (await api.http.get("/api/operations")).json()["operations"]
    return [entry for entry in listed if entry["nodeID"] in nodes]


async def history(api: Api, node: str) -> list[dict[str, Any]]:
    answer = await api.http.get("/api/operations/history")
    assert answer.status_code == 200, answer.text
    return [entry for entry in answer.json()["operations"] if entry["nodeID"] == node]


async def installing(api: Api) -> str:
    node = await api.approved_node()
    accepted = await api.http.post(f"/api/nodes/{node['id']}/backends/install", json={"backend": "echo"})
    return str(accepted.json()["jobID"])


async def test_live_list_has_localais_entries(api: Api) -> None:
    """S6, S59: every operation here has a node, in a field of its own."""
    op_id = await recorded(api, State.RUNNING, node_id="list-1")
    gauge = {"bytes_done": 425, "bytes_total": 1000, "percentage": 42.5, "rate": 9}
    tick = Progress(op_id=op_id, node_id="list-1", phase=Phase.DOWNLOADING, **gauge)
    await api.deps.operations.write_gauges([tick])
    [entry] = await live(api, "list-1")
    theirs = {
        "id": "echo",
        "name": "echo",
        "fullName": "echo",
        "jobID": op_id,
        "progress": 42,
        "taskType": "Installation",
        "isDeletion": False,
        "isBackend": True,
        "isQueued": False,
        "cancellable": True,
        "message": "downloading on the node",
        "nodeID": "list-1",
        "phase": "downloading",
        "currentBytes": 425,
        "totalBytes": 1000,
        "nodes": [
            {
                "node_id": "list-1",
                "node_name": "list-1-name",
                "status": "downloading",
                "percentage": 42.5,
                "phase": "downloading",
            }
        ],
    }
    assert entry == theirs


async def test_live_list_keeps_failures_until_dismissed_and_drops_successes(api: Api) -> None:
    failed = await recorded(api, State.FAILED, node_id="keep", reason=Reason.NO_DISK)
    await recorded(api, State.SUCCEEDED, node_id="keep")
    await recorded(api, State.CANCELLED, node_id="keep")
    waiting = await recorded(api, State.WAITING, node_id="keep", reason=Reason.NODE_AWAY)
    entries = {entry["jobID"]: entry for entry in await live(api, "keep")}
    assert set(entries) == {failed, waiting}
    assert entries[failed]["error"] == "failed: not enough disk space on the node"
    assert not entries[failed]["cancellable"]
    assert (entries[waiting]["taskType"], entries[waiting]["isQueued"]) == ("Waiting", True)
    dismissed = await api.http.post(f"/api/operations/{failed}/dismiss")
    assert dismissed.json() == {"success": True, "message": "Operation dismissed"}
    assert [entry["jobID"] for entry in await live(api, "keep")] == [waiting]
    assert not (await api.http.post(f"/api/operations/{waiting}/dismiss")).json()["success"]


async def test_list_is_ordered_by_progress_then_name(api: Api) -> None:
    """S59."""
    for done in (70, 10, 40):
        op_id = await recorded(api, State.RUNNING, node_id="order")
        await api.deps.operations.write_gauges([Progress(op_id=op_id, node_id="order", percentage=done)])
    assert [entry["progress"] for entry in await live(api, "order")] == [10, 40, 70]


async def test_running_removal_is_not_cancellable(api: Api) -> None:
    """S60."""
    running = await recorded(api, State.RUNNING, kind=Kind.REMOVE, node_id="removal")
    queued = await recorded(api, State.QUEUED, kind=Kind.REMOVE, node_id="removal")
    listed = await live(api, "removal")
    assert all(entry["isDeletion"] for entry in listed)
    assert {entry["jobID"]: entry["cancellable"] for entry in listed} == {running: False, queued: True}


async def test_cancel_is_accepted_while_no_worker_is_there_and_may_be_repeated(api: Api) -> None:
    job = await installing(api)
    for body in (None, {"reason": "changed my mind", "mode": "keep"}):
        answer = await api.http.post(f"/api/operations/{job}/cancel", json=body)
        assert (answer.status_code, answer.json()) == (200, {"success": True, "message": "Operation cancelled"})


async def test_cancel_of_an_operation_that_ended_is_refused(api: Api) -> None:
    op_id = await recorded(api, State.SUCCEEDED)
    answer = await api.http.post(f"/api/operations/{op_id}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "operation_ended")
    assert answer.json()["error"] == answer.json()["detail"]


async def test_pause_is_a_cancel_that_keeps_what_was_downloaded(api: Api) -> None:
    paused = await api.http.post(f"/api/operations/{await installing(api)}/pause")
    assert (paused.status_code, paused.json()) == (200, {"success": True, "message": "Operation paused"})
    assert (await api.http.post("/api/operations/nobody/pause")).status_code == 404
    ended = await recorded(api, State.FAILED)
    assert (await api.http.post(f"/api/operations/{ended}/pause")).status_code == 409


async def test_the_id_of_a_batch_is_a_job_id_to_cancel_and_to_dismiss(api: Api) -> None:
    node = await api.approved_node()
    started = await api.http.post("/api/v1/batches", json={"backend": "echo", "nodes": [node["name"]]})
    batch_id = started.json()["batch_id"]
    paused = await api.http.post(f"/api/operations/{batch_id}/pause")
    assert (paused.status_code, paused.json()["message"]) == (200, "Operation paused")
    cancelled = await api.http.post(f"/api/operations/{batch_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["message"]) == (200, "Operation cancelled")
    await recorded(api, State.FAILED, op_id=member_op_id(batch_id, node["id"]), node_id=node["id"], batch_id=batch_id)
    dismissed = await api.http.post(f"/api/operations/{batch_id}/dismiss")
    assert dismissed.json() == {"success": True, "message": "Operation dismissed"}


async def test_history_has_localais_entries_the_newest_end_first(api: Api) -> None:
    done = await recorded(api, State.SUCCEEDED, node_id="h1")
    removed = await recorded(api, State.SUCCEEDED, kind=Kind.REMOVE, node_id="h1")
    failed = await recorded(api, State.FAILED, node_id="h1", reason=Reason.NO_DISK)
    cancelled = await recorded(api, State.CANCELLED, node_id="h1", reason=Reason.REQUESTED)
    await recorded(api, State.RUNNING, node_id="h1")
    entries = await history(api, "h1")
    assert [entry["jobID"] for entry in entries] == [cancelled, failed, removed, done]
    assert [entry["outcome"] for entry in entries] == ["cancelled", "failed", "completed", "completed"]
    assert [entry["taskType"] for entry in entries] == ["installation", "installation", "deletion", "installation"]
    assert [entry.get("error") for entry in entries] == [None, "failed: not enough disk space on the node", None, None]
    assert entries[1].items() >= {"id": "echo", "name": "echo", "isBackend": True, "nodeID": "h1"}.items()
    assert entries[1]["startedAt"] < entries[1]["finishedAt"]


async def test_clearing_the_history_keeps_what_needs_attention(api: Api) -> None:
    await recorded(api, State.SUCCEEDED, node_id="h3")
    failed = await recorded(api, State.FAILED, node_id="h3")
    answer = await api.http.delete("/api/operations/history")
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert [entry["jobID"] for entry in await history(api, "h3")] == [failed]
    [entry] = (await api.http.get("/api/v1/audit?target=history")).json()["items"][:1]
    assert (entry["actor"], entry["after"]["cleared"] > 0) == ("admin", True)

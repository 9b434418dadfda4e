"""Operations over HTTP, in LocalAI's format and in ours."""

import secrets
from typing import Any

import pytest

from nodesmith.contracts.http.operations import OperationView
from nodesmith.contracts.nats.messages import Installed, Outcome, Progress, Result
from nodesmith.domain.operation import Phase, Reason, State
from tests.api.station import Api
from tests.store.transitions import a_request, transition


async def recorded(api: Api, state: State, **facts: Any) -> str:
    """An operation as the workflow would have left it."""
    request = a_request(node_id=facts.pop("node_id", f"n-{secrets.token_hex(4)}"))
    await api.deps.operations.record(transition(request, state, **facts))
    return request.op_id


async def test_live_list_reads_as_localais_and_as_ours(api: Api) -> None:
    """S6, S59: every operation here has a node, in a field of its own."""
    op_id = await recorded(api, State.RUNNING, node_id="list-1")
    tick = Progress(op_id=op_id, phase=Phase.DOWNLOADING, bytes_done=425, bytes_total=1000, percentage=42.5, rate=9)
    await api.deps.operations.write_gauges([tick])
    [entry] = (await api.http.get("/api/operations?node=list-1")).json()["operations"]
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
    }
    assert theirs.items() <= entry.items()
    assert "error" not in entry
    assert [(node["node_id"], node["status"]) for node in entry["nodes"]] == [("list-1", "downloading")]
    ours = OperationView.model_validate(entry)
    assert (ours.state, ours.progress.percentage, ours.progress.bytes_done) == (State.RUNNING, 42.5, 425)


async def test_live_list_keeps_failures_until_dismissed_and_drops_successes(api: Api) -> None:
    failed = await recorded(api, State.FAILED, node_id="keep", reason=Reason.NO_DISK)
    await recorded(api, State.SUCCEEDED, node_id="keep")
    await recorded(api, State.CANCELLED, node_id="keep")
    waiting = await recorded(api, State.WAITING, node_id="keep", reason=Reason.NODE_AWAY)

    async def live() -> dict[str, dict[str, Any]]:
        listed = (await api.http.get("/api/operations?node=keep")).json()["operations"]
        return {entry["jobID"]: entry for entry in listed}

    entries = await live()
    assert set(entries) == {failed, waiting}
    assert entries[failed]["error"] == "failed: not enough disk space on the node"
    assert not entries[failed]["cancellable"]
    assert (entries[waiting]["taskType"], entries[waiting]["isQueued"]) == ("Waiting", True)
    dismissed = await api.http.post(f"/api/operations/{failed}/dismiss")
    assert dismissed.json() == {"success": True, "message": "Operation dismissed"}
    assert set(await live()) == {waiting}
    assert not (await api.http.post(f"/api/operations/{waiting}/dismiss")).json()["success"]
    everything = (await api.http.get("/api/operations?node=keep&all=true")).json()["operations"]
    assert len(everything) == 4


async def test_list_is_ordered_by_progress_then_name(api: Api) -> None:
    """S59."""
    for done in (70, 10, 40):
        op_id = await recorded(api, State.RUNNING, node_id="order")
        await api.deps.operations.write_gauges([Progress(op_id=op_id, percentage=done)])
    listed = (await api.http.get("/api/operations?node=order")).json()["operations"]
    assert [entry["progress"] for entry in listed] == [10, 40, 70]


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


async def test_operation_detail_has_the_whole_timeline(api: Api) -> None:
    request = a_request()
    outcome = Outcome(op_id=request.op_id, result=Result.SUCCEEDED, changed=True, after=Installed(version="2"))
    await api.deps.operations.record(
        transition(request, State.WAITING, seq=1, reason=Reason.NODE_AWAY),
        transition(request, State.RUNNING, seq=2, attempt=1),
        transition(request, State.SUCCEEDED, seq=3, attempt=1, outcome=outcome),
    )
    detail = (await api.http.get(f"/api/operations/{request.op_id}")).json()
    assert [event["state"] for event in detail["timeline"]] == ["waiting", "running", "succeeded"]
    assert detail["timeline"][0]["message"] == "waiting: the node does not answer"
    assert (detail["after"]["version"], detail["changed"]) == ("2", True)
    assert detail["temporal_url"].startswith("http://temporal.test/namespaces/default/workflows/backend%3An1%3Aecho/")


async def test_cancel_is_accepted_while_no_worker_is_there_and_may_be_repeated(api: Api) -> None:
    node = await api.approved_node()
    job = (await api.http.post(f"/api/nodes/{node['id']}/backends/install", json={"backend": "echo"})).json()["jobID"]
    for body in (None, {"reason": "changed my mind", "mode": "keep"}):
        answer = await api.http.post(f"/api/operations/{job}/cancel", json=body)
        assert answer.status_code == 200
        assert (answer.json()["success"], answer.json()["message"]) == (True, "Operation cancelled")


async def test_cancel_of_an_operation_that_ended_is_refused(api: Api) -> None:
    op_id = await recorded(api, State.SUCCEEDED)
    answer = await api.http.post(f"/api/operations/{op_id}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "operation_ended")
    assert isinstance(answer.json()["error"], str)


async def test_catalogue_names_what_can_be_installed(api: Api) -> None:
    backends = (await api.http.get("/api/backends")).json()["backends"]
    assert {(each["name"], each["version"]) for each in backends} >= {("echo", "1"), ("echo", "2")}

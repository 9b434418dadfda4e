"""History, pending work and bulk orders over HTTP; LocalAI's job status and synchronous removals."""

import asyncio
import dataclasses
import secrets
from datetime import timedelta
from typing import Any

import pytest

from nodesmith.contracts.nats.messages import Command, Progress
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.contracts.temporal.batches import (
    BatchInput,
    BatchMember,
    BatchState,
    CloseBatch,
    MemberVerdict,
    Target,
    member_op_id,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import ENDED, Phase, Reason, State
from nodesmith.store.clock import utc_now
from tests.api.node import NodeHandlers, on_the_bus
from tests.api.station import Api, served, until
from tests.deadlines import HANGS_S
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition

_at = iter(range(1, 10_000))


async def recorded(api: Api, state: State, *, kind: Kind = Kind.INSTALL, **facts: Any) -> str:
    """An operation as the workflow would have left it; each ends a second after the one before."""
    told = {name: facts.pop(name) for name in ("reason", "detail") if name in facts}
    request = a_request(**facts)
    request = request.model_copy(update={"wanted": request.wanted.model_copy(update={"kind": kind})})
    moment = next(_at)
    ended_at = NOON + timedelta(seconds=moment) if state in ENDED else None
    await api.deps.operations.record(transition(request, state, at=moment, ended_at=ended_at, **told))
    return request.op_id


async def history(api: Api, **query: Any) -> dict[str, Any]:
    answer = await api.http.get("/api/operations/history", params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def test_history_reads_as_localais_and_as_ours(api: Api) -> None:
    done = await recorded(api, State.SUCCEEDED, node_id="h1")
    removed = await recorded(api, State.SUCCEEDED, kind=Kind.REMOVE, node_id="h1")
    failed = await recorded(api, State.FAILED, node_id="h1", reason=Reason.NO_DISK)
    cancelled = await recorded(api, State.CANCELLED, node_id="h1", reason=Reason.REQUESTED)
    await recorded(api, State.RUNNING, node_id="h1")
    entries = (await history(api, node="h1"))["operations"]
    assert [entry["jobID"] for entry in entries] == [cancelled, failed, removed, done], "the newest end first"
    assert [entry["outcome"] for entry in entries] == ["cancelled", "failed", "completed", "completed"]
    assert [entry["taskType"] for entry in entries] == ["installation", "installation", "deletion", "installation"]
    assert [entry.get("error") for entry in entries] == [None, "failed: not enough disk space on the node", None, None]
    assert entries[1].items() >= {"id": "echo", "name": "echo", "isBackend": True, "nodeID": "h1"}.items()
    assert entries[1]["startedAt"] < entries[1]["finishedAt"]
    assert (entries[1]["state"], entries[1]["reason"], entries[1]["requested_by"]) == ("failed", "no_disk", "admin")


async def test_history_is_the_same_on_every_replica_page_by_page(api: Api, replica: Api) -> None:
    """There is one copy, so a page may come from one replica and the next from another."""
    written = [await recorded(api, State.SUCCEEDED, node_id="h2") for _ in range(5)]
    seen, cursor = [], ""
    for each in (api, replica, api):
        page = await history(each, node="h2", limit=2, cursor=cursor)
        seen += [entry["jobID"] for entry in page["operations"]]
        cursor = page["next"]
    assert seen == written[::-1]
    assert cursor is None


async def test_what_ends_leaves_the_list_of_every_replica_and_is_in_the_history_of_each(api: Api, replica: Api) -> None:
    """S16, H43: no copy to go stale, though both have looked before."""
    both, request = (api, replica), a_request(node_id="h4")
    await api.deps.operations.record(transition(request, State.RUNNING, at=1))
    assert [await live(each, "h4") for each in both] == [[request.op_id]] * 2
    assert [(await history(each, node="h4"))["operations"] for each in both] == [[], []]
    await api.deps.operations.record(transition(request, State.SUCCEEDED, at=2, seq=2, ended_at=NOON))
    assert [await live(each, "h4") for each in both] == [[], []]
    told = [(await history(each, node="h4"))["operations"] for each in both]
    assert [[entry["jobID"] for entry in each] for each in told] == [[request.op_id]] * 2


async def live(api: Api, node: str) -> list[str]:
    return [entry["jobID"] for entry in (await api.http.get(f"/api/operations?node={node}")).json()["operations"]]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"cursor": "nonsense"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"state": "sleeping"}, "state"),
        ({"since": "2026-11-16T12:00:00"}, "since"),
        ({"until": "yesterday"}, "until"),
    ],
)
async def test_history_names_the_invalid_filter(api: Api, query: dict[str, Any], field: str) -> None:
    answer = await api.http.get("/api/operations/history", params=query)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


async def test_clearing_the_history_is_for_admins_and_keeps_what_needs_attention(api: Api) -> None:
    await recorded(api, State.SUCCEEDED, node_id="h3")
    failed = await recorded(api, State.FAILED, node_id="h3")
    answer = await api.http.delete("/api/operations/history")
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    assert [entry["jobID"] for entry in (await history(api, node="h3"))["operations"]] == [failed]
    [entry] = (await api.http.get("/api/v1/audit?target=history")).json()["entries"][:1]
    assert (entry["actor"], entry["after"]["cleared"] > 0) == ("admin", True)


async def test_pending_work_is_listed_per_node_and_per_backend(api: Api) -> None:
    """H34: the queue is visible."""
    backend = f"b-{secrets.token_hex(4)}"
    await recorded(api, State.WAITING, node_id="p1", backend=backend, reason=Reason.NODE_AWAY)
    await recorded(api, State.QUEUED, node_id="p1", backend=backend)
    await recorded(api, State.RUNNING, node_id="p2", backend=backend)
    pending = (await api.http.get("/api/operations/pending")).json()
    nodes = {work["node_id"]: work for work in pending["nodes"]}
    assert (nodes["p1"]["total"], nodes["p1"]["reasons"]) == (2, {"node_away": 1})
    [mine] = [work for work in pending["backends"] if work["name"] == backend]
    assert (mine["total"], mine["states"]) == (3, {"waiting": 1, "queued": 1, "running": 1})
    assert pending["total"] == sum(work["total"] for work in pending["nodes"])


async def test_many_are_cancelled_by_filter_after_a_preview(api: Api) -> None:
    node = await api.approved_node()
    jobs = set()
    for version in ("1", "2"):
        body = {"uri": f"http://source.test/b{version}.tar.gz", "sha256": "0" * 64}
        jobs.add((await api.http.post(f"/api/nodes/{node['id']}/backends/install", json=body)).json()["jobID"])
    await recorded(api, State.SUCCEEDED, node_id=node["id"])
    looked = (await api.http.post("/api/operations/cancel", json={"node": node["name"], "preview": True})).json()
    assert (looked["preview"], looked["matched"], looked["accepted"]) == (True, 2, 0)
    assert {each["op_id"] for each in looked["operations"]} == jobs
    done = await api.http.post("/api/operations/cancel", json={"node": node["name"], "reason": "wrong rack"})
    assert (done.json()["matched"], done.json()["accepted"]) == (2, 2)
    [entry] = (await api.http.get("/api/v1/audit?target=operations")).json()["entries"][:1]
    assert (entry["reason"], entry["after"]) == ("wrong rack", {"node": node["name"], "matched": 2, "accepted": 2})


async def test_a_removal_on_its_node_is_left_out_of_a_bulk_cancel_and_named(api: Api) -> None:
    """S60: a running removal is not cancellable, whoever asks."""
    op_id = await recorded(api, State.RUNNING, kind=Kind.REMOVE, node_id="r1")
    done = (await api.http.post("/api/operations/cancel", json={"node": "r1"})).json()
    assert (done["matched"], done["accepted"]) == (1, 0)
    assert f"Operation {op_id} is removing" in done["operations"][0]["note"]
    queued = await recorded(api, State.QUEUED, kind=Kind.REMOVE, node_id="r1")
    listed = (await api.http.get("/api/operations?node=r1")).json()["operations"]
    assert all(entry["isDeletion"] for entry in listed)
    assert {entry["jobID"]: entry["cancellable"] for entry in listed} == {op_id: False, queued: True}


async def test_many_are_dismissed_by_filter(api: Api) -> None:
    failed = [await recorded(api, State.DEAD_LETTER, node_id="d1") for _ in range(2)]
    await recorded(api, State.WAITING, node_id="d1")
    looked = (await api.http.post("/api/operations/dismiss", json={"node": "d1", "preview": True})).json()
    assert {each["op_id"] for each in looked["operations"]} == set(failed)
    done = (await api.http.post("/api/operations/dismiss", json={"node": "d1", "state": "dead_letter"})).json()
    assert (done["matched"], done["accepted"]) == (2, 2)
    assert len((await api.http.get("/api/operations?node=d1")).json()["operations"]) == 1


@pytest.mark.parametrize("order", ["cancel", "dismiss"])
@pytest.mark.parametrize("body", [{}, {"preview": True}, {"state": "sleeping"}, {"node": "a\0b"}])
async def test_an_order_to_everything_is_refused(api: Api, order: str, body: dict[str, Any]) -> None:
    assert (await api.http.post(f"/api/operations/{order}", json=body)).status_code == 400


async def test_pause_is_a_cancel_that_keeps_what_was_downloaded(api: Api) -> None:
    node = await api.approved_node()
    job = (await api.http.post(f"/api/nodes/{node['id']}/backends/install", json={"backend": "echo"})).json()["jobID"]
    paused = await api.http.post(f"/api/operations/{job}/pause")
    assert (paused.status_code, paused.json()["message"]) == (200, "Operation paused")
    assert (await api.http.post("/api/operations/nobody/pause")).status_code == 404
    ended = await recorded(api, State.FAILED)
    assert (await api.http.post(f"/api/operations/{ended}/pause")).status_code == 409


async def test_cancel_of_what_ended_names_the_outcome_and_retry_of_a_success_is_refused(api: Api) -> None:
    ended = await recorded(api, State.FAILED, reason=Reason.BAD_DIGEST)
    refused = await api.http.post(f"/api/operations/{ended}/cancel")
    assert (refused.status_code, refused.json()["state"]) == (409, "failed")
    assert "sha256 differs" in refused.json()["detail"]
    done = await recorded(api, State.SUCCEEDED)
    again = await api.http.post(f"/api/operations/{done}/retry")
    assert (again.status_code, again.json()["code"]) == (409, "not_retryable")
    assert (await api.http.post("/api/operations/nobody/retry")).status_code == 404
    assert (await api.http.get("/api/operations/nobody")).status_code == 404


# LocalAI's job status -----------------------------------------------------------------------------------------


async def op_status(api: Api, job_id: str) -> dict[str, Any]:
    answer = await api.http.get(f"/backends/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    status: dict[str, Any] = answer.json()
    return status


async def test_status_of_a_running_operation_is_localais(api: Api) -> None:
    """S58: the node's own line goes with it."""
    op_id = await recorded(api, State.RUNNING, node_id="s1")
    tick = Progress(op_id=op_id, phase=Phase.DOWNLOADING, bytes_done=5, bytes_total=10, percentage=50)
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


# removals that are waited for, and stop -----------------------------------------------------------------------


async def test_removal_that_outlasts_the_wait_continues_with_a_504(api: Api) -> None:
    """H28, promise 4: the answer is neither a success nor a failure, and names the operation."""
    node = await api.approved_node()
    async with served(dataclasses.replace(api.deps, patience_s=0.2)) as hasty:
        answer = await hasty.http.post(f"/api/nodes/{node['id']}/backends/delete", json={"backend": "echo"})
    assert answer.status_code == 504
    [entry] = (await api.http.get(f"/api/operations?node={node['id']}")).json()["operations"]
    assert (entry["jobID"], entry["isDeletion"]) == (answer.json()["op_id"], True)
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
    assert (problem["code"], problem["op_id"], problem["state"]) == ("operation_failed", op_id, state)
    assert problem["detail"].startswith("backend deletion failed: ")
    assert "the disk is read-only" in problem["detail"]
    assert problem["error"]["message"] == problem["detail"]


async def open_on(api: Api, node_id: str) -> list[str]:
    """Removals of that node that somebody waits for."""
    listed = (await api.http.get(f"/api/operations?node={node_id}")).json()["operations"]
    return [entry["jobID"] for entry in listed if entry["isDeletion"]]


async def test_a_removal_needs_a_name_and_a_node(api: Api) -> None:
    node = await api.approved_node()
    assert (await api.http.post(f"/api/nodes/{node['id']}/backends/delete", json={})).status_code == 400
    assert (await api.http.post("/api/nodes/nobody/backends/delete", json={"backend": "echo"})).status_code == 404


class StopHandlers(NodeHandlers):
    """Hears what it is told to stop."""

    def __init__(self) -> None:
        self.stopped: asyncio.Queue[Command] = asyncio.Queue()

    async def stop_backend(self, command: Command) -> None:
        self.stopped.put_nowait(command)


async def test_stop_goes_straight_to_the_node_and_is_audited(api: Api) -> None:
    """S43: fire and forget; the node stays registered, and the audit trail knows who did it."""
    node = await api.approved_node()
    await api.deps.nodes.heartbeats([Heartbeat(node_id=node["id"])], utc_now())
    handlers = StopHandlers()
    async with on_the_bus(node, handlers):
        body = {"backend": "echo", "force": True, "reason": "it burns"}
        answer = await api.http.post(f"/api/nodes/{node['name']}/backends/stop", json=body)
        assert answer.status_code == 202, answer.text
        told = await asyncio.wait_for(handlers.stopped.get(), HANGS_S)
    assert (told.backend, told.force) == ("echo", True)
    [entry] = (await api.http.get(f"/api/v1/audit?target={node['name']}")).json()["entries"][:1]
    assert (entry["action"], entry["reason"]) == ("nodes.backends.stop", "it burns")
    assert (await api.http.get(f"/api/operations?node={node['id']}&all=true")).json()["operations"] == []


async def test_stop_fails_when_the_node_is_unreachable(api: Api) -> None:
    pending, agent = await api.register(), await api.approved_node(node_type="agent")
    assert (await api.http.post(f"/api/nodes/{pending['id']}/backends/stop", json={})).status_code == 503
    assert (await api.http.post(f"/api/nodes/{agent['id']}/backends/stop", json={})).status_code == 409
    assert (await api.http.post("/api/nodes/nobody/backends/stop", json={})).status_code == 404

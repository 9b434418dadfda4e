"""Operations over HTTP: lists, details, cancel, retry and dismiss."""

import asyncio
from typing import Any

import pytest

from nodesmith.contracts.http.operations import OperationPage
from nodesmith.contracts.nats.messages import Installed, Outcome, Progress, Result
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Phase, Reason, State
from nodesmith.store.clock import utc_now
from tests.api.node import on_the_bus
from tests.api.records import recorded
from tests.api.station import Api
from tests.deadlines import HANGS_S
from tests.fakes.node import SimulatedNode
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition

PATH = "/api/v1/operations"


async def listed(api: Api, **query: Any) -> dict[str, Any]:
    answer = await api.http.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    return page


async def ids(api: Api, **query: Any) -> list[str]:
    return [entry["op_id"] for entry in (await listed(api, **query))["items"]]


async def test_list_has_the_gauge_and_the_sentence_of_each_operation(api: Api) -> None:
    """S6: every operation has a node, in a field of its own."""
    op_id = await recorded(api, State.RUNNING, node_id="list-1")
    gauge = {"bytes_done": 425, "bytes_total": 1000, "percentage": 42.5, "rate": 9}
    tick = Progress(op_id=op_id, node_id="list-1", phase=Phase.DOWNLOADING, **gauge)
    await api.deps.operations.write_gauges([tick])
    page = OperationPage.model_validate(await listed(api, node="list-1"))
    [entry] = page.items
    assert (entry.op_id, entry.node_id, entry.state) == (op_id, "list-1", State.RUNNING)
    assert (entry.progress.percentage, entry.progress.bytes_done) == (42.5, 425)
    assert entry.message == "downloading on the node"
    assert entry.temporal_url.startswith("http://temporal.test/")
    assert (page.next_cursor, page.last_event_id > 0, page.stale_since) == (None, True, None)


async def test_each_scope_has_its_operations(api: Api) -> None:
    failed = await recorded(api, State.FAILED, node_id="scopes")
    done = await recorded(api, State.SUCCEEDED, node_id="scopes")
    waiting = await recorded(api, State.WAITING, node_id="scopes", reason=Reason.NODE_AWAY)
    assert set(await ids(api, node="scopes")) == {failed, waiting}
    assert await ids(api, node="scopes", scope="open") == [waiting]
    assert await ids(api, node="scopes", scope="ended") == [done, failed]
    assert set(await ids(api, node="scopes", scope="all")) == {failed, done, waiting}


async def test_filters_restrict_every_scope(api: Api) -> None:
    first = await recorded(api, State.FAILED, node_id="filters", backend="one")
    second = await recorded(api, State.DEAD_LETTER, node_id="filters", backend="two", batch_id="filters-b")
    for scope in ("live", "ended", "all"):
        assert await ids(api, node="filters-name", scope=scope, backend="one") == [first]
        assert await ids(api, node="filters", scope=scope, state="dead_letter") == [second]
        assert await ids(api, batch="filters-b", scope=scope) == [second]


async def test_ended_operations_are_filtered_by_the_time_of_their_end(api: Api) -> None:
    early, late = [await recorded(api, State.SUCCEEDED, node_id="times") for _ in range(2)]
    ends = [entry["ended_at"] for entry in (await listed(api, node="times", scope="ended"))["items"]]
    assert await ids(api, node="times", scope="ended", since=ends[0]) == [late]
    assert await ids(api, node="times", scope="ended", until=ends[0]) == [early]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"cursor": "nonsense"}, "cursor"),
        ({"cursor": "nonsense", "scope": "ended"}, "cursor"),
        ({"limit": 0}, "limit"),
        ({"state": "sleeping"}, "state"),
        ({"scope": "history"}, "scope"),
        ({"scope": "ended", "since": "2026-11-16T12:00:00"}, "since"),
        ({"scope": "ended", "until": "yesterday"}, "until"),
        ({"since": "2026-11-16T12:00:00Z"}, "since"),
        ({"until": "2026-11-16T12:00:00Z", "scope": "all"}, "until"),
    ],
)
async def test_an_invalid_filter_is_named(api: Api, query: dict[str, Any], field: str) -> None:
    answer = await api.http.get(PATH, params=query)
    assert (answer.status_code, answer.json()["facts"]) == (400, {"field": field})


async def test_history_is_the_same_on_every_replica_page_by_page(api: Api, replica: Api) -> None:
    """There is one copy, so a page may come from one replica and the next from another."""
    written = [await recorded(api, State.SUCCEEDED, node_id="h2") for _ in range(5)]
    seen, cursor = [], ""
    for each in (api, replica, api):
        page = await listed(each, node="h2", scope="ended", limit=2, cursor=cursor)
        seen += [entry["op_id"] for entry in page["items"]]
        cursor = page["next_cursor"]
    assert seen == written[::-1]
    assert cursor is None


async def test_what_ends_leaves_the_list_of_every_replica_and_is_in_the_history_of_each(api: Api, replica: Api) -> None:
    """S16, H43: no copy to go stale, though both have looked before."""
    both, request = (api, replica), a_request(node_id="h4")
    await api.deps.operations.record(transition(request, State.RUNNING, at=1))
    assert [await ids(each, node="h4") for each in both] == [[request.op_id]] * 2
    assert [await ids(each, node="h4", scope="ended") for each in both] == [[], []]
    await api.deps.operations.record(transition(request, State.SUCCEEDED, at=2, seq=2, ended_at=NOON))
    assert [await ids(each, node="h4") for each in both] == [[], []]
    assert [await ids(each, node="h4", scope="ended") for each in both] == [[request.op_id]] * 2


async def test_operation_detail_has_the_whole_timeline(api: Api) -> None:
    request = a_request()
    outcome = Outcome(op_id=request.op_id, result=Result.SUCCEEDED, changed=True, after=Installed(version="2"))
    await api.deps.operations.record(
        transition(request, State.WAITING, seq=1, reason=Reason.NODE_AWAY),
        transition(request, State.RUNNING, seq=2, attempt=1),
        transition(request, State.SUCCEEDED, seq=3, attempt=1, outcome=outcome),
    )
    detail = (await api.http.get(f"{PATH}/{request.op_id}")).json()
    assert [event["state"] for event in detail["timeline"]] == ["waiting", "running", "succeeded"]
    assert detail["timeline"][0]["message"] == "waiting: the node does not answer"
    assert (detail["after"]["version"], detail["changed"]) == ("2", True)
    assert detail["temporal_url"].startswith("http://temporal.test/namespaces/default/workflows/backend%3An1%3Aecho/")


async def test_cancel_answers_with_the_state_and_may_be_repeated(api: Api) -> None:
    node = await api.approved_node()
    asked = {"kind": "install", "node": node["id"], "backend": "echo"}
    op_id = (await api.http.post(PATH, json=asked)).json()["op_id"]
    for body in (None, {"reason": "changed my mind", "mode": "keep"}):
        answer = await api.http.post(f"{PATH}/{op_id}/cancel", json=body)
        assert answer.status_code == 202, answer.text
        assert answer.json().keys() == {"op_id", "state", "note"}
        assert (answer.json()["op_id"], answer.json()["state"]) == (op_id, "cancelling")


async def test_cancel_of_what_ended_names_the_outcome(api: Api) -> None:
    ended = await recorded(api, State.FAILED, reason=Reason.BAD_DIGEST)
    refused = await api.http.post(f"{PATH}/{ended}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "operation_ended")
    assert refused.json()["facts"] == {"op_id": ended, "state": "failed"}
    assert "sha256 differs" in refused.json()["detail"]


async def test_cancel_of_a_removal_that_reached_its_node_is_refused(api: Api) -> None:
    """S60."""
    running = await recorded(api, State.RUNNING, kind=Kind.REMOVE)
    refused = await api.http.post(f"{PATH}/{running}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_cancellable")


async def test_retry_of_a_success_and_of_nothing_is_refused(api: Api) -> None:
    done = await recorded(api, State.SUCCEEDED)
    again = await api.http.post(f"{PATH}/{done}/retry")
    assert (again.status_code, again.json()["code"]) == (409, "not_retryable")
    assert (await api.http.post(f"{PATH}/nobody/retry")).status_code == 404
    assert (await api.http.get(f"{PATH}/nobody")).status_code == 404


async def test_dismissed_operation_leaves_the_live_list_and_stays_in_the_history(api: Api) -> None:
    failed = await recorded(api, State.FAILED, node_id="dismissed", reason=Reason.NO_DISK)
    for _ in range(2):
        dismissed = await api.http.post(f"{PATH}/{failed}/dismiss")
        assert (dismissed.status_code, dismissed.json()["op_id"]) == (200, failed)
        assert dismissed.json()["dismissed_at"]
    assert await ids(api, node="dismissed") == []
    assert await ids(api, node="dismissed", scope="ended") == [failed]


@pytest.mark.parametrize("state", [State.WAITING, State.SUCCEEDED, State.CANCELLED])
async def test_only_what_ended_badly_is_dismissed(api: Api, state: State) -> None:
    op_id = await recorded(api, state)
    refused = await api.http.post(f"{PATH}/{op_id}/dismiss")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_dismissable")
    assert refused.json()["facts"] == {"op_id": op_id, "state": state}


# stop ---------------------------------------------------------------------------------------------------------


async def test_stop_goes_straight_to_the_node_and_is_audited(api: Api) -> None:
    """S43: fire and forget; the node stays registered, and the audit trail knows who did it."""
    node = await api.approved_node()
    await api.deps.nodes.heartbeats([Heartbeat(node_id=node["id"])], utc_now())
    handlers = SimulatedNode()
    async with on_the_bus(node, handlers):
        body = {"backend": "echo", "force": True, "reason": "it burns"}
        answer = await api.http.post(f"/api/v1/nodes/{node['name']}/backends/stop", json=body)
        assert answer.status_code == 202, answer.text
        order = await asyncio.wait_for(handlers.stopped.get(), HANGS_S)
    assert (order.backend, order.force) == ("echo", True)
    [entry] = (await api.http.get(f"/api/v1/audit?target={node['name']}")).json()["items"][:1]
    assert (entry["action"], entry["reason"]) == ("nodes.backends.stop", "it burns")
    assert await ids(api, node=node["id"], scope="all") == []


async def test_stop_fails_when_the_node_is_unreachable(api: Api) -> None:
    pending, agent = await api.register(), await api.approved_node(node_type="agent")
    for node, status in ((pending["id"], 503), (agent["id"], 409), ("nobody", 404)):
        assert (await api.http.post(f"/api/v1/nodes/{node}/backends/stop", json={})).status_code == status

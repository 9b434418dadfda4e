"""One response, one snapshot: a change committed during a read is in all of the response or in none of it."""

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from nodesmith.contracts.nats.messages import Installed, Progress
from nodesmith.contracts.temporal.batches import BatchInput, BatchState, CloseBatch, Target, member_op_id
from nodesmith.contracts.temporal.operations import OperationRequest
from nodesmith.domain.operation import State
from nodesmith.store.database import Database
from nodesmith.store.nodes.inventory import InventoryTable
from nodesmith.store.operations.batches import Batches
from nodesmith.store.operations.operations import OperationTable
from tests.api.sse import reading
from tests.api.station import Api
from tests.databases import opened
from tests.store.clock import NOON
from tests.store.interleaving import changed_after
from tests.store.transitions import a_request, transition


@dataclass(frozen=True)
class Writer:
    """Another process: a worker that records what happens, on connections of its own."""

    operations: OperationTable
    batches: Batches
    inventory: InventoryTable

    async def begin(self, request: OperationRequest) -> None:
        await self.operations.record(transition(request, State.RUNNING))

    async def end(self, request: OperationRequest) -> None:
        await self.operations.record(transition(request, State.SUCCEEDED, at=2, seq=2, ended_at=NOON))


@pytest.fixture
async def writer(database_url: str) -> AsyncIterator[Writer]:
    async with opened(database_url) as database:
        yield Writer(OperationTable(database), Batches(database), InventoryTable(database))


def database_of(api: Api) -> Database:
    return api.deps.operations._database


async def answer_while(api: Api, path: str, query: str, change: Callable[[], Awaitable[None]]) -> Any:
    """What is answered when the change is committed right after that query."""
    with changed_after(database_of(api), query, change):
        answer = await api.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_end_recorded_during_a_read_of_the_operation_reaches_the_stream(api: Api, writer: Writer) -> None:
    request = a_request()
    await writer.begin(request)
    path = f"/api/v1/operations/{request.op_id}"
    shown = await answer_while(api, path, "FROM operations", lambda: writer.end(request))
    assert shown["state"] == shown["timeline"][-1]["state"]
    async with reading(api, last_event_id=shown["timeline"][-1]["id"], op_id=request.op_id) as reader:
        assert (await reader.next()).data["state"] == "succeeded"


@pytest.mark.parametrize("query", ["FROM operations", "max(operation_events.id)"])
async def test_end_recorded_during_a_read_of_the_list_reaches_the_stream(api: Api, writer: Writer, query: str) -> None:
    request = a_request(node_id=f"n-{secrets.token_hex(4)}")
    await writer.begin(request)
    path = f"/api/v1/operations?node={request.node_id}"
    listed = await answer_while(api, path, query, lambda: writer.end(request))
    assert [entry["state"] for entry in listed["items"]] == ["running"]
    async with reading(api, last_event_id=listed["last_event_id"], op_id=request.op_id) as reader:
        assert (await reader.next()).data["state"] == "succeeded"


async def test_empty_list_has_a_last_event_id(api: Api, writer: Writer) -> None:
    request = a_request(node_id=f"n-{secrets.token_hex(4)}")
    listed = (await api.http.get(f"/api/v1/operations?node={request.node_id}")).json()
    await writer.begin(request)
    async with reading(api, last_event_id=listed["last_event_id"], node_id=request.node_id) as reader:
        assert (await reader.next()).data["op_id"] == request.op_id


@dataclass(frozen=True)
class Rollout:
    """A batch of one member that runs, and its end."""

    batch_id: str
    request: OperationRequest
    writer: Writer

    async def end(self) -> None:
        await self.writer.end(self.request)
        await self.writer.batches.close(CloseBatch(batch_id=self.batch_id, state=BatchState.COMPLETED, at=NOON))


@pytest.fixture
async def rollout(writer: Writer) -> Rollout:
    batch_id, node_id = f"b-{secrets.token_hex(4)}", f"n-{secrets.token_hex(4)}"
    request = a_request(op_id=member_op_id(batch_id, node_id), node_id=node_id, batch_id=batch_id)
    target = Target(node_id=node_id, node_name=request.node_name)
    await writer.batches.open(BatchInput(batch_id=batch_id, wanted=request.wanted, targets=(target,), created_at=NOON))
    await writer.begin(request)
    return Rollout(batch_id, request, writer)


async def test_batch_that_ends_while_it_is_read_is_shown_before_its_end(api: Api, rollout: Rollout) -> None:
    shown = await answer_while(api, f"/api/v1/batches/{rollout.batch_id}", "FROM batches", rollout.end)
    assert (shown["state"], shown["counts"]) == ("running", {"running": 1})
    assert Counter(member["state"] for member in shown["members"]) == shown["counts"]


async def test_members_that_end_while_a_batch_is_read_fit_its_counts(api: Api, rollout: Rollout) -> None:
    shown = await answer_while(api, f"/api/v1/batches/{rollout.batch_id}", "FROM batch_members", rollout.end)
    assert Counter(member["state"] for member in shown["members"]) == shown["counts"]


async def test_list_of_batches_counts_the_members_as_they_were_in_that_state(api: Api, rollout: Rollout) -> None:
    listed = await answer_while(api, "/api/v1/batches", "FROM batches", rollout.end)
    [shown] = [each for each in listed["items"] if each["batch_id"] == rollout.batch_id]
    assert (shown["state"], shown["counts"]) == ("running", {"running": 1})


async def test_job_status_of_a_batch_fits_the_status_of_its_nodes(api: Api, rollout: Rollout) -> None:
    status = await answer_while(api, f"/backends/jobs/{rollout.batch_id}", "FROM batches", rollout.end)
    assert not status["processed"]
    assert [node["status"] for node in status["nodes"]] == ["downloading"]


async def test_inventory_and_its_time_are_read_together(api: Api, writer: Writer) -> None:
    node = await api.register()
    await writer.inventory.replace(node["id"], [Installed(name="echo", version="1")], asked_at=NOON, boot_id="")

    async def listed_again() -> None:
        later = NOON + timedelta(minutes=1)
        await writer.inventory.replace(node["id"], [Installed(name="echo", version="2")], asked_at=later, boot_id="")

    path = f"/api/v1/nodes/{node['id']}/inventory"
    shown = await answer_while(api, path, "FROM inventory_scans", listed_again)
    assert ([each["version"] for each in shown["backends"]], shown["seen_at"]) == (["1"], "2026-11-16T12:00:00Z")


async def test_nodes_that_differ_are_those_that_were_counted(api: Api, writer: Writer) -> None:
    family = f"echo-{secrets.token_hex(4)}"
    nodes = [(await api.register())["id"] for _ in range(3)]

    async def install(node_id: str, version: str, minute: int = 0) -> None:
        at, found = NOON + timedelta(minutes=minute), Installed(name=family, family=family, version=version)
        await writer.inventory.replace(node_id, [found], asked_at=at, boot_id="")

    for node_id, version in zip(nodes, ("1", "1", "2"), strict=True):
        await install(node_id, version)
    path = f"/api/v1/inventory?backend={family}"
    spread = await answer_while(api, path, "FROM installed_backends", lambda: install(nodes[2], "1", minute=1))
    [shown] = spread["items"]
    assert {each["version"]: each["nodes"] for each in shown["builds"]} == {"1": 2, "2": 1}
    assert [each["node_id"] for each in shown["differing"]] == [nodes[2]]


async def test_ticks_of_a_member_that_begins_while_the_stream_is_opened_reach_it(api: Api, writer: Writer) -> None:
    request = a_request(batch_id=f"b-{secrets.token_hex(4)}")
    with changed_after(database_of(api), "FROM operations", lambda: writer.begin(request)):
        async with reading(api, batch_id=request.batch_id) as reader:
            assert (await reader.next()).data["op_id"] == request.op_id
            api.deps.events.tick(Progress(op_id=request.op_id, node_id=request.node_id, percentage=1))
            assert (await reader.next()).kind == "progress"


async def test_empty_last_page_of_nodes_has_the_total_of_its_own_moment(api: Api) -> None:
    marker = secrets.token_hex(4)
    nodes = [await api.register(name=f"{marker}-{number}") for number in (1, 2)]
    first = await api.http.get("/api/v1/nodes", params={"text": marker, "limit": 1})
    assert (await api.http.delete(f"/api/v1/nodes/{nodes[1]['id']}")).status_code == 200

    async def registered() -> None:
        await api.register(name=f"{marker}-0")

    query: dict[str, str | int] = {"text": marker, "limit": 1, "cursor": first.json()["next_cursor"]}
    with changed_after(database_of(api), "FROM nodes", registered):
        last = await api.http.get("/api/v1/nodes", params=query)
    assert last.json() == {"items": [], "next_cursor": None, "total": 1}

"""The event stream: no event is missed or repeated, on any replica."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

from nodesmith.api.stream import EventHub, Stream
from nodesmith.bus.reports import NodeReports
from nodesmith.contracts.nats.messages import Progress
from nodesmith.domain.deployment import Rule
from nodesmith.domain.operation import Phase, State
from nodesmith.store.database import Database
from nodesmith.store.operations.events import EventFeed
from tests.api.node import on_the_bus
from tests.api.sse import reading
from tests.api.station import ADMIN_TOKEN, Api, served, until
from tests.databases import opened
from tests.store.transitions import a_request, transition


async def happen(api: Api, count: int = 1, **facts: str) -> str:
    """So many changes of one operation; returns its id."""
    request = a_request(**facts)
    for number in range(1, count + 1):
        await api.deps.operations.record(transition(request, State.RUNNING, at=number, seq=number))
    return request.op_id


async def test_change_of_state_comes_with_its_number(api: Api) -> None:
    async with reading(api) as reader:
        op_id = await happen(api)
        event = await reader.next()
    assert (event.kind, event.data["op_id"], event.data["state"]) == ("operation", op_id, "running")
    assert event.number == event.data["id"]
    assert event.data["message"] == "running on the node"


async def test_stream_begins_now_unless_a_number_is_given(api: Api) -> None:
    before = await happen(api)
    async with reading(api) as reader:
        after = await happen(api)
        assert (await reader.next()).data["op_id"] == after
    latest = await EventFeed(api_database(api)).latest_id()
    async with reading(api, last_event_id=latest - 2) as reader:
        assert [event.data["op_id"] for event in await reader.take(2)] == [before, after]
    async with reading(api, last_event_id=latest - 1) as reader:
        assert (await reader.next()).data["op_id"] == after


def api_database(api: Api) -> Database:
    return api.deps.operations._database


async def test_reader_that_changes_replicas_misses_nothing_and_gets_nothing_twice(api: Api, replica: Api) -> None:
    """Writers never stop; the reader comes back to the other replica after every few events."""
    start = await EventFeed(api_database(api)).latest_id()
    writing = asyncio.gather(*(happen(each, 15) for each in (api, replica) for _ in range(4)))
    seen: list[int] = []
    while len(seen) < 120:
        turn = (api, replica)[len(seen) % 2]
        async with reading(turn, last_event_id=seen[-1] if seen else start) as reader:
            seen += [event.number or 0 for event in await reader.take(min(9, 120 - len(seen)))]
    await writing
    stored = await EventFeed(api_database(api)).after(start, limit=1000)
    assert seen == [event.id for event in stored]


async def test_events_before_the_window_come_from_the_database(api: Api, database_url: str) -> None:
    async with opened(database_url) as database:
        feed = EventFeed(database)
        start = await feed.latest_id()
        hub = EventHub(feed, window=3)
        async with served(replace(api.deps, events=hub)) as small:
            async with reading(small) as reader:
                await happen(small, 20)
                await reader.take(20)
            async with reading(small, last_event_id=start) as reader:
                numbers = [event.number for event in await reader.take(20)]
                await happen(small)
                numbers.append((await reader.next()).number)
        assert numbers == [event.id for event in await feed.after(start, limit=100)]


async def test_stream_is_filtered_by_operation_node_and_batch(api: Api) -> None:
    node = await api.register()
    wanted = a_request(node_id=node["id"], batch_id="batch-1")
    queries = ({"op_id": wanted.op_id}, {"node_id": node["id"]}, {"node_id": node["name"]}, {"batch_id": "batch-1"})

    async def change(seq: int) -> None:
        """Between changes that are none of this reader's business."""
        await happen(api)
        await api.deps.operations.record(transition(wanted, State.RUNNING, at=seq, seq=seq))
        await happen(api)

    for turn, query in enumerate(queries):
        start = await EventFeed(api_database(api)).latest_id()
        await change(2 * turn + 1)
        async with reading(api, last_event_id=start, **query) as reader:
            missed = await reader.next()
            await change(2 * turn + 2)
            live = await reader.next()
        assert [missed.data["op_id"], live.data["op_id"]] == [wanted.op_id] * 2
        assert (missed.number or 0) < (live.number or 0)


async def test_event_number_from_the_future_is_read_as_now(api: Api) -> None:
    """Of a database that was restored, say: better late than silent for ever."""
    async with reading(api, last_event_id=10**15) as reader:
        assert (await reader.next()).kind == "reset"
        op_id = await happen(api)
        assert (await reader.next()).data["op_id"] == op_id


async def test_progress_ticks_have_no_event_number(api: Api) -> None:
    node = await api.approved_node()
    async with on_the_bus(node) as bus, reading(api, op_id="op-progress") as reader:
        said = Progress(op_id="op-progress", phase=Phase.DOWNLOADING, bytes_done=5, bytes_total=10, percentage=50)
        await NodeReports(bus, node["id"]).progress(said.model_copy(update={"op_id": "op-other"}))
        await NodeReports(bus, node["id"]).progress(said)
        tick = await reader.next()
    assert (tick.kind, tick.number) == ("progress", None)
    assert (tick.data["op_id"], tick.data["node_id"]) == ("op-progress", node["id"])
    assert (tick.data["phase"], tick.data["percentage"], tick.data["bytes_done"]) == ("downloading", 50, 5)


async def test_progress_that_another_node_sends_for_an_operation_is_not_shown(api: Api) -> None:
    async with reading(api) as reader:
        op_id = await happen(api)
        event = (await reader.next()).data
        for node_id, percentage in ((event["node_id"], 5), ("another", 99)):
            api.deps.events.tick(Progress(op_id=op_id, node_id=node_id, percentage=percentage))
        tick = await reader.next()
    assert (tick.kind, tick.data["percentage"]) == ("progress", 5)


async def test_changed_model_is_told_without_a_number_to_streams_about_everything(api: Api) -> None:
    async with reading(api) as reader, reading(api, node_id="n1") as other:
        await api.deps.deployments.table.set_rule("llama", Rule(min_replicas=1))
        notice = await reader.notice("llama")
        op_id = await happen(api, node_id="n1")
        assert (await other.next()).data["op_id"] == op_id
    assert (notice.kind, notice.number, notice.data) == ("model", None, {"model": "llama"})


async def test_ticks_of_a_batch_reach_its_stream(api: Api) -> None:
    before = await happen(api, batch_id="batch-2")
    async with reading(api, batch_id="batch-2") as reader:
        during = await happen(api, batch_id="batch-2")
        event = (await reader.next()).data
        assert event["op_id"] == during
        for op_id in ("foreign", before, during):
            api.deps.events.tick(Progress(op_id=op_id, node_id=event["node_id"], percentage=1))
        ticks = await reader.take(2)
    assert {tick.data["op_id"] for tick in ticks} == {before, during}


async def test_silent_stream_is_kept_alive(api: Api, database_url: str) -> None:
    async with opened(database_url) as database:
        hub = EventHub(EventFeed(database), keep_alive_s=0.01)
        async with served(replace(api.deps, events=hub)) as quick, reading(quick) as reader:
            assert [await reader.comment(), await reader.comment()] == [": still here"] * 2


async def test_server_that_stops_ends_its_streams(api: Api, database_url: str) -> None:
    async with opened(database_url) as database:
        hub = EventHub(EventFeed(database))
        async with served(replace(api.deps, events=hub)) as stopping, reading(stopping) as reader:
            hub.close()
            await reader.end()


async def test_hub_drops_a_reader_that_leaves(api: Api, database_url: str) -> None:
    async with opened(database_url) as database:
        hub = EventHub(EventFeed(database))
        async with served(replace(api.deps, events=hub)) as left:
            async with reading(left):
                await until(streams_of(hub), bool)
            await until(streams_of(hub), lambda streams: not streams)


async def test_reader_that_takes_nothing_is_disconnected(api: Api, database_url: str) -> None:
    """Meanwhile it holds one frame of each operation, and no more."""
    async with opened(database_url) as database:
        hub = EventHub(EventFeed(database), stuck_after_s=0.2)
        async with served(replace(api.deps, events=hub)) as patient:
            with open_and_never_read(patient.url):
                await until(streams_of(hub), bool)
                await until(streams_of(hub), lambda streams: not flooded(hub, streams))


@contextmanager
def open_and_never_read(url: str) -> Iterator[None]:
    address = urlsplit(url)
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((address.hostname, address.port))
        stuck.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n".encode())
        yield


def streams_of(hub: EventHub) -> Callable[[], Awaitable[set[Stream]]]:
    async def streams() -> set[Stream]:
        return hub._streams

    return streams


def flooded(hub: EventHub, streams: set[Stream]) -> bool:
    for number in range(100):
        hub.tick(Progress(op_id=f"op-{number}", backend="x" * 2000))
    assert all(len(stream._ticks) <= 100 for stream in streams)
    return bool(streams)

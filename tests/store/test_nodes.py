"""The registry of nodes."""

import asyncio
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select

from nodesmith.api.views.nodes import node_view
from nodesmith.contracts.agent_api import RegisterRequest
from nodesmith.contracts.nats.presence import BackendConfinement, Heartbeat, Resources
from nodesmith.domain.errors import NameTaken
from nodesmith.domain.node import NodeFacts, NodeStatus, Protocol, status_of
from nodesmith.domain.operation import State
from nodesmith.store.database import Database
from nodesmith.store.nodes.labels import Labels
from nodesmith.store.nodes.nodes import Nodes, status_expression
from nodesmith.store.operations.operations import OperationTable
from nodesmith.store.tables.core import HeartbeatSinkRow, NodeRow
from tests.store.clock import NOON, SetClock
from tests.store.transitions import a_request, transition


def a_node(**facts: Any) -> RegisterRequest:
    named = {"name": f"node-{uuid.uuid4().hex[:8]}", "protocol": Protocol.NODESMITH, "machine_id": "m1"}
    return RegisterRequest(**{**named, **facts})


async def registered(nodes: Nodes, request: RegisterRequest, *, approve: bool = True) -> str:
    return (await nodes.upsert(request, now=NOON, credential_hash="h1", approve=approve)).id


async def test_node_is_found_by_id_and_by_name(nodes: Nodes) -> None:
    request = a_node()
    node_id = await registered(nodes, request)
    by_id, by_name = await nodes.find(node_id), await nodes.find(request.name)
    assert by_id is not None
    assert by_id == by_name
    assert await nodes.find("nobody") is None


async def test_node_is_found_by_its_credential(nodes: Nodes) -> None:
    view = await nodes.upsert(a_node(), now=NOON, credential_hash="only-mine", approve=True)
    found = await nodes.with_credential("only-mine")
    assert found is not None
    assert found.id == view.id
    assert await nodes.with_credential("nobodys") is None


async def test_an_id_wins_over_a_name_that_looks_like_it(nodes: Nodes) -> None:
    node_id = await registered(nodes, a_node())
    await registered(nodes, a_node(name=node_id))
    found = await nodes.find(node_id)
    assert found is not None
    assert found.id == node_id


async def test_registering_again_keeps_id_approval_drain_and_labels_of_others(nodes: Nodes, database: Database) -> None:
    request = a_node(labels={"zone": "a"}, total_ram=64)
    node_id = await registered(nodes, request)
    async with database.session() as session:
        row = await session.get_one(NodeRow, node_id)
        row.drained_at, row.left_at = NOON, NOON
    await Labels(database).merge(node_id, {"from": "admin"})
    again = request.model_copy(update={"labels": {"zone": "b"}, "total_ram": None, "boot_id": "boot-2"})
    view = await nodes.upsert(again, now=NOON, credential_hash=None, approve=False)
    assert (view.id, view.approved_at, view.drained_at, view.left_at) == (node_id, NOON, NOON, None)
    assert (view.labels["zone"], view.labels["from"]) == ("b", "admin")
    assert (view.total_ram, view.boot_id) == (None, "boot-2")
    assert await nodes.credential_hash(node_id) == "h1"


async def test_name_belongs_to_its_machine(nodes: Nodes) -> None:
    request = a_node(machine_id="m1")
    await registered(nodes, request)
    for intruder in ("m2", ""):
        with pytest.raises(NameTaken):
            await registered(nodes, request.model_copy(update={"machine_id": intruder}))


async def test_of_two_machines_that_race_for_a_name_one_gets_it(nodes: Nodes) -> None:
    request = a_node()
    racers = [request.model_copy(update={"machine_id": f"m{number}"}) for number in range(8)]
    results = await asyncio.gather(*(registered(nodes, racer) for racer in racers), return_exceptions=True)
    assert sum(isinstance(result, NameTaken) for result in results) == len(racers) - 1
    winner = next(result for result in results if isinstance(result, str))
    assert await nodes.machine_id(winner) == racers[results.index(winner)].machine_id


async def test_approval_is_given_once(nodes: Nodes) -> None:
    node_id = await registered(nodes, a_node(), approve=False)
    assert await nodes.approve(node_id, now=NOON)
    assert not await nodes.approve(node_id, now=NOON)
    assert not await nodes.approve("nobody", now=NOON)


async def test_heartbeats_of_many_nodes_are_one_write_and_unknown_ones_are_ignored(nodes: Nodes) -> None:
    first, second = await registered(nodes, a_node(total_ram=8)), await registered(nodes, a_node())
    beats = [
        Heartbeat(node_id=first, boot_id="b1", resources=Resources(available_ram=5)),
        Heartbeat(node_id=second),
        Heartbeat(node_id="nobody"),
        Heartbeat(node_id=first, boot_id="b2", resources=Resources(available_disk=0)),
    ]
    await nodes.heartbeats(beats, NOON)
    view = await nodes.find(first)
    assert view is not None
    assert (view.last_heartbeat, view.boot_id) == (NOON, "b2")
    assert (view.total_ram, view.available_disk) == (8, 0)
    other = await nodes.find(second)
    assert other is not None
    assert other.last_heartbeat == NOON


async def test_heartbeat_with_text_that_cannot_be_stored_does_not_stop_the_others(nodes: Nodes) -> None:
    labelled = a_node().model_copy(update={"labels": {"a\0": "b\0"}})
    strange, other = await registered(nodes, labelled), await registered(nodes, a_node())
    beats = [
        Heartbeat(node_id=strange, resources=Resources(gpu_vendor="a\0b")),
        Heartbeat(node_id=other),
    ]
    await nodes.heartbeats(beats, NOON)
    views = [await nodes.find(node_id) for node_id in (strange, other)]
    assert [view.last_heartbeat for view in views if view] == [NOON, NOON]
    assert views[0] is not None
    assert (views[0].gpu_vendor, views[0].labels["a\ufffd"]) == ("a\ufffdb", "b\ufffd")


async def test_late_batch_does_not_set_a_heartbeat_back(nodes: Nodes) -> None:
    node_id = await registered(nodes, a_node())
    await nodes.heartbeats([Heartbeat(node_id=node_id)], NOON)
    await nodes.heartbeats([Heartbeat(node_id=node_id)], NOON - timedelta(seconds=5))
    view = await nodes.find(node_id)
    assert view is not None
    assert view.last_heartbeat == NOON


async def test_dead_node_is_offline_although_the_clock_was_set_back(nodes: Nodes, clock: SetClock) -> None:
    """Otherwise it would stay healthy until the clock has reached its last heartbeat again."""
    node_id, earlier = await registered(nodes, a_node()), NOON - timedelta(hours=1)
    await nodes.touch_listening(NOON)
    await nodes.heartbeats([Heartbeat(node_id=node_id)], NOON)
    await nodes.touch_listening(earlier)
    await nodes.heartbeats([Heartbeat(node_id=node_id)], earlier)
    for seconds, status in ((10, NodeStatus.HEALTHY), (120, NodeStatus.OFFLINE)):
        clock.now = earlier + timedelta(seconds=seconds)
        for passed in range(0, seconds + 1, 10):
            await nodes.touch_listening(earlier + timedelta(seconds=passed))
        view = await nodes.find(node_id)
        assert view is not None
        assert view.status is status


async def test_batches_that_name_the_same_nodes_in_any_order_do_not_lock_each_other_out(nodes: Nodes) -> None:
    ids = [await registered(nodes, a_node()) for _ in range(20)]
    beats = [Heartbeat(node_id=node_id) for node_id in ids]
    await asyncio.gather(*(nodes.heartbeats(beats[:: 1 if turn % 2 else -1], NOON) for turn in range(20)))


async def test_only_the_bus_proves_that_commands_get_through(nodes: Nodes, clock: SetClock) -> None:
    node_id = await registered(nodes, a_node())
    await nodes.heartbeats([Heartbeat(node_id=node_id)], NOON)

    async def status() -> NodeStatus:
        view = await nodes.find(node_id)
        assert view is not None
        return view.status

    await nodes.mark_unreachable(node_id, NOON)
    assert await status() is NodeStatus.UNHEALTHY
    await nodes.heartbeats([Heartbeat(node_id=node_id)], NOON, over_nats=False)
    assert await status() is NodeStatus.UNHEALTHY
    await nodes.heartbeats([Heartbeat(node_id=node_id)], NOON)
    assert await status() is NodeStatus.HEALTHY
    await nodes.mark_unreachable(node_id, NOON)
    await nodes.mark_reachable({node_id: NOON - timedelta(seconds=1)})
    assert await status() is NodeStatus.UNHEALTHY, "it answered before it was found to be gone"
    await nodes.mark_reachable({node_id: NOON})
    assert await status() is NodeStatus.HEALTHY


async def test_unreachable_keeps_its_first_time(nodes: Nodes) -> None:
    node_id = await registered(nodes, a_node())
    await nodes.mark_unreachable(node_id, NOON)
    await nodes.mark_unreachable(node_id, NOON + timedelta(hours=1))
    view = await nodes.find(node_id)
    assert view is not None
    assert view.unreachable_since == NOON


async def test_gap_of_the_heartbeat_sink_sets_no_node_offline(nodes: Nodes, clock: SetClock) -> None:
    node_id = await registered(nodes, a_node())
    await nodes.heartbeats([Heartbeat(node_id=node_id)], NOON)
    await nodes.touch_listening(NOON)

    async def status_after(seconds: float) -> NodeStatus:
        clock.now = NOON + timedelta(seconds=seconds)
        view = await nodes.find(node_id)
        assert view is not None
        return view.status

    for second in range(10, 71, 10):
        await nodes.touch_listening(NOON + timedelta(seconds=second))
    assert await status_after(70) is NodeStatus.OFFLINE  # the sink listened all the time, so the node is silent
    await nodes.touch_listening(NOON + timedelta(seconds=90))
    assert await status_after(90) is NodeStatus.HEALTHY  # the sink had a gap: 60 s from now on
    assert await status_after(151) is NodeStatus.HEALTHY  # no sink listens, so silence is not counted
    for second in range(100, 152, 10):
        await nodes.touch_listening(NOON + timedelta(seconds=second + 1))
    assert await status_after(151) is NodeStatus.OFFLINE


async def test_sinks_of_the_two_protocols_are_away_each_for_itself(nodes: Nodes, clock: SetClock) -> None:
    worker = await registered(nodes, a_node(protocol=Protocol.LOCALAI, machine_id="", address="h:1"))
    agent = await registered(nodes, a_node())
    await nodes.touch_listening(clock.forward(seconds=3600), protocol=Protocol.LOCALAI)
    await nodes.heartbeats([Heartbeat(node_id=worker), Heartbeat(node_id=agent)], clock.now)
    for _ in range(12):
        await nodes.touch_listening(clock.forward(seconds=10), protocol=Protocol.NODESMITH)
    views = [await nodes.find(node_id) for node_id in (worker, agent)]
    assert [view.status for view in views if view] == [NodeStatus.HEALTHY, NodeStatus.OFFLINE]


async def test_registration_is_a_sign_of_life_only_of_a_localai_worker(nodes: Nodes) -> None:
    own = await nodes.find(await registered(nodes, a_node()))
    worker = await nodes.find(await registered(nodes, a_node(protocol=Protocol.LOCALAI, machine_id="")))
    assert own is not None
    assert worker is not None
    assert (own.last_heartbeat, worker.last_heartbeat) == (None, NOON)


async def test_node_counts_its_open_operations(nodes: Nodes, operations: OperationTable) -> None:
    node_id = await registered(nodes, a_node())
    for state in (State.RUNNING, State.WAITING, State.SUCCEEDED):
        await operations.record(transition(a_request(node_id=node_id), state))
    view = await nodes.find(node_id)
    assert view is not None
    assert view.open_operations == 2
    assert {node.id: node.open_operations for node in await nodes.list()}[node_id] == 2


# the status in SQL is the status of the domain -----------------------------------------------------------------

moments = st.one_of(
    st.sampled_from([-3600.0, -60.000001, -60.0, -59.999999, -1.0, 0.0, 1.0]),
    st.floats(min_value=-200, max_value=10, allow_nan=False).map(lambda seconds: round(seconds, 6)),
).map(lambda seconds: NOON + timedelta(seconds=seconds))
facts = st.builds(NodeFacts, **{name: st.none() | moments for name in NodeFacts.__dataclass_fields__})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(known=st.lists(facts, min_size=1, max_size=15), listening_since=moments, listened_until=moments)
async def test_status_in_sql_is_the_status_of_the_domain(
    database: Database, known: list[NodeFacts], listening_since: datetime, listened_until: datetime
) -> None:
    """R2, R30: five statuses, derived on read, the same in both; status takes `now` as a parameter."""
    sink = {"protocol": 77, "listening_since": listening_since, "last_listened": listened_until}
    sink_is_ours = HeartbeatSinkRow.protocol == 77
    rows = [node_row(str(number), each) for number, each in enumerate(known)]
    async with database.session() as session:
        await session.execute(insert(HeartbeatSinkRow).values(sink))
        await session.execute(insert(NodeRow).values(rows))
        sinks = HeartbeatSinkRow.protocol == NodeRow.protocol
        statement = select(NodeRow.id, status_expression(NOON)).join(HeartbeatSinkRow, sinks).where(sink_is_ours)
        in_sql = {int(node_id): status for node_id, status in await session.execute(statement)}
        await session.rollback()
    listened = {"listening_since": listening_since, "listened_until": listened_until}
    in_domain = [status_of(each, now=NOON, **listened) for each in known]
    assert [in_sql[number] for number in range(len(known))] == in_domain


def node_row(number: str, known: NodeFacts) -> dict[str, Any]:
    reported = dict.fromkeys(("address", "http_address", "vram_budget", "machine_id", "boot_id", "agent_version"), "")
    fixed = {"id": number, "name": f"sql-{number}", "node_type": "backend", "protocol": 77, "resources": {}}
    times = {name: getattr(known, name) for name in NodeFacts.__dataclass_fields__}
    return {
        **reported,
        **fixed,
        **times,
        "max_replicas_per_model": 1,
        "created_at": NOON,
        "updated_at": NOON,
    }


async def test_repeated_heartbeat_is_no_sign_of_life(nodes: Nodes) -> None:
    """An attacker who replays recorded heartbeats cannot keep a dead node alive."""
    node_id = await registered(nodes, a_node(boot_id="b1"))
    beat = Heartbeat(node_id=node_id, boot_id="b1", seq=7, at=NOON)
    await nodes.heartbeats([beat], NOON)
    for again in (beat, beat.model_copy(update={"seq": 6})):
        await nodes.heartbeats([again], NOON + timedelta(seconds=30))
    found = await nodes.find(node_id)
    assert found is not None
    assert found.last_heartbeat == NOON
    (heard,) = await nodes.heartbeats([beat.model_copy(update={"seq": 8})], NOON + timedelta(seconds=31))
    assert heard.beat_at == NOON
    found = await nodes.find(node_id)
    assert found is not None
    assert found.last_heartbeat == NOON + timedelta(seconds=31)


async def test_new_boot_counts_its_heartbeats_from_one(nodes: Nodes) -> None:
    request = a_node(boot_id="b1")
    node_id = await registered(nodes, request)
    await nodes.heartbeats([Heartbeat(node_id=node_id, boot_id="b1", seq=900)], NOON)
    await registered(nodes, request.model_copy(update={"boot_id": "b2"}))
    await nodes.heartbeats([Heartbeat(node_id=node_id, boot_id="b2", seq=1)], NOON + timedelta(seconds=9))
    found = await nodes.find(node_id)
    assert found is not None
    assert found.last_heartbeat == NOON + timedelta(seconds=9)


async def test_heartbeat_says_which_trust_list_the_node_has(nodes: Nodes) -> None:
    node_id = await registered(nodes, a_node(boot_id="b1"))
    await nodes.approve(node_id, now=NOON)
    for seq, version, kept in ((1, 3, 3), (2, 2, 2), (1, 9, 2)):
        await nodes.heartbeats([Heartbeat(node_id=node_id, boot_id="b1", seq=seq, trust_version=version)], NOON)
        found = await nodes.find(node_id)
        assert found is not None
        assert found.trust_version == kept, "a restored node goes back; a repeated heartbeat changes nothing"


async def test_confinement_of_backends_is_kept_from_the_registration(nodes: Nodes) -> None:
    shown = BackendConfinement(mode="on", landlock_abi=3, user="agent", missing=["ports"])
    node_id = await registered(nodes, a_node(boot_id="b1", confinement=shown))
    await nodes.heartbeats([Heartbeat(node_id=node_id, boot_id="b1", seq=1)], NOON)
    found = await nodes.find(node_id)
    assert found is not None
    assert node_view(found).confinement == shown, "a heartbeat does not repeat it, and does not take it away"

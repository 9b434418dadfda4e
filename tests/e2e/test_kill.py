"""Kill it and watch: whatever dies in the middle of an install, the install ends, once, and right."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from domain.operation import Reason, State
from runtime.settings import ControlSettings
from runtime.temporal import connect
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.stack.commands import Machine

pytestmark = [pytest.mark.private_stack, pytest.mark.timeout(300)]

MB = 1024 * 1024


@pytest.fixture(scope="module")
async def victim(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A stack of our own, because everything in it gets killed; its timeouts are short."""
    quick = {
        "NODESMITH_POLICY__HEARTBEAT_TIMEOUT": "5",
        "NODESMITH_POLICY__SILENCE": "3",
        "NODESMITH_FLEET_TICK": "3",
        "NODESMITH_AGENT_HEARTBEAT_INTERVAL": "2",
    }
    machine = Machine(tmp_path_factory.mktemp("kill") / "home", environment=quick)
    machine.up(agents=2)
    try:
        fleet = Fleet(machine)
        yield fleet
        await fleet.http.aclose()
    finally:
        machine.down()


async def begin(victim: Fleet, source: SlowSource, name: str, *, seconds: float = 4) -> tuple[str, str]:
    """An install that is under way, and slow; returns its id and the digest of what it must leave on the disk."""
    built = package(6 * MB)
    source.bytes_per_second = 6 * MB / seconds
    op_id = await victim.accepted("agent-1", **offer(source, name, built))
    await victim.in_state(op_id, State.RUNNING)
    await source.going.wait()
    return op_id, built.noise_sha256


@pytest.mark.parametrize("name", ["api", "worker", "agent-1", "nats", "postgres", "temporal"])
async def test_any_one_process_may_die_in_the_middle(victim: Fleet, source: SlowSource, name: str) -> None:
    """G4; S31, superseded: it goes on, instead of being reaped as failed. Promise 2."""
    op_id, noise = await begin(victim, source, f"survives-{name}")
    pid = victim.machine.pids()[name]
    victim.kill(name)
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert victim.noise_on_disk("agent-1", f"survives-{name}") == noise
    await victim.restarted(name, pid)
    states = [event["state"] for event in operation["timeline"]]
    assert states.count("succeeded") == 1
    assert State.FAILED not in states


async def test_a_cancel_sent_while_the_worker_is_dead_is_carried_out_when_it_is_back(
    victim: Fleet, source: SlowSource
) -> None:
    """S30, G3."""
    op_id, _ = await begin(victim, source, "cancelled-meanwhile", seconds=120)
    victim.kill("worker")
    answer = await victim.http.post(f"/api/operations/{op_id}/cancel", json={})
    assert answer.status_code == 200
    operation = await victim.ended(op_id)
    assert operation["state"] == State.CANCELLED
    assert not victim.live("agent-1", "cancelled-meanwhile").exists()


async def test_cancel_reaches_node_after_worker_crash_during_dispatch(victim: Fleet, source: SlowSource) -> None:
    """The run has recorded nothing of the command; its row has, so the node is told before anybody says `cancelled`."""
    source.bytes_per_second = MB / 20
    op_id = await victim.accepted("agent-1", **offer(source, "asked-by-the-dead", package(6 * MB)))
    await source.going.wait()
    victim.kill("worker")
    answer = await victim.http.post(f"/api/operations/{op_id}/cancel", json={})
    assert answer.status_code == 200
    operation = await victim.ended(op_id)
    assert (operation["state"], victim.standing("agent-1", op_id)) == (State.CANCELLED, "cancelled")
    assert not victim.live("agent-1", "asked-by-the-dead").exists()


async def test_a_run_terminated_in_the_web_ui_ends_as_an_honest_row_and_the_node_stops(
    victim: Fleet, source: SlowSource
) -> None:
    op_id, _ = await begin(victim, source, "terminated", seconds=120)
    await terminate(victim, (await victim.operation(op_id))["workflow_id"])
    operation = await victim.ended(op_id)
    assert (operation["state"], operation["reason"]) == (State.FAILED, Reason.ENDED_OUTSIDE)
    sent = source.sent["terminated.tar.gz"]
    await victim.ended(await victim.accepted("agent-1", backend="echo", force=True))
    assert source.sent["terminated.tar.gz"] <= sent + MB
    assert not victim.live("agent-1", "terminated").exists()


async def terminate(victim: Fleet, workflow_id: str) -> None:
    port = victim.machine.base + 1
    client = await connect(ControlSettings(temporal_address=f"127.0.0.1:{port}"))
    await client.get_workflow_handle(workflow_id).terminate("in the Web UI")


async def test_an_unplugged_node_is_waited_for_and_its_return_ends_the_wait(victim: Fleet, source: SlowSource) -> None:
    pid = victim.machine.pids()["agent-2"]
    os.kill(pid, signal.SIGSTOP)
    try:
        op_id = await victim.accepted("agent-2", backend="echo")
        waiting = await victim.in_state(op_id, State.WAITING)
        assert waiting["reason"] == Reason.NODE_AWAY
        assert waiting["until"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (await victim.ended(op_id))["state"] == State.SUCCEEDED


async def test_all_of_them_at_once(victim: Fleet, source: SlowSource) -> None:
    op_id, noise = await begin(victim, source, "survives-everything")
    for name in ("api", "worker", "agent-1", "nats", "postgres", "temporal"):
        victim.kill(name)
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert victim.noise_on_disk("agent-1", "survives-everything") == noise


async def test_kill_of_the_parent_and_up_again_goes_on_where_it_was(victim: Fleet, source: SlowSource) -> None:
    op_id, noise = await begin(victim, source, "survives-the-parent")
    parent = victim.machine.status()["pid"]
    children = list(victim.machine.pids().values())
    os.kill(parent, signal.SIGKILL)
    async with asyncio.timeout(30):
        while any(alive(pid) for pid in children):  # noqa: ASYNC110 - the kernel ends them
            await asyncio.sleep(0.05)
    victim.machine.up(agents=2)
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert victim.noise_on_disk("agent-1", "survives-the-parent") == noise


async def test_a_node_that_is_restarted_in_the_middle_finishes_and_is_healthy_again(
    victim: Fleet, source: SlowSource
) -> None:
    """R18, H5: SIGTERM is a goodbye, not a drain: the operation waits, and goes on when the node is back."""
    op_id, noise = await begin(victim, source, "survives-a-restart")
    pid = victim.machine.pids()["agent-1"]
    os.kill(pid, signal.SIGTERM)
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert victim.noise_on_disk("agent-1", "survives-a-restart") == noise
    await victim.restarted("agent-1", pid)
    await node_is(victim, "agent-1", "healthy")


@asynccontextmanager
async def nats_down(victim: Fleet) -> AsyncIterator[None]:
    """Dead, and not started again before the end: whoever would do that is stopped meanwhile."""
    parent, pid = victim.machine.status()["pid"], victim.machine.pids()["nats"]
    os.kill(parent, signal.SIGSTOP)
    try:
        victim.kill("nats")
        yield
    finally:
        os.kill(parent, signal.SIGCONT)
    await victim.restarted("nats", pid)


async def test_without_nats_operations_are_accepted_wait_with_a_reason_and_go_on(victim: Fleet) -> None:
    """Design 9: degraded, not hanging. Promise 2: it says what it waits for, and until when."""
    async with nats_down(victim):
        op_id = await victim.accepted("agent-1", backend="echo", force=True)
        waiting = await victim.in_state(op_id, State.WAITING)
        assert (waiting["reason"], waiting["dispatched_at"]) == (Reason.NATS_DOWN, None)
        assert waiting["until"]
        assert waiting["message"].startswith("waiting: ")
        listed = (await victim.http.get("/api/operations")).json()["operations"]
        assert [entry["taskType"] for entry in listed if entry["jobID"] == op_id] == ["Waiting"]
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert State.FAILED not in [event["state"] for event in operation["timeline"]]


async def test_cancel_of_what_a_frozen_node_may_have_received_waits_for_its_word(
    victim: Fleet, source: SlowSource
) -> None:
    """Promise 3: the command lies in the socket of the node, so `cancelled` is said only after the node has said so."""
    source.bytes_per_second = MB / 20
    await victim.ended(await victim.accepted("agent-2", backend="echo", force=True))  # its link is up
    pid = victim.machine.pids()["agent-2"]
    os.kill(pid, signal.SIGSTOP)
    try:
        op_id = await victim.accepted("agent-2", **offer(source, "drained", package(6 * MB)))
        await victim.in_state(op_id, State.WAITING)
        drained = await victim.http.post("/api/nodes/agent-2/drain", json={"reason": "new disks"})
        assert drained.json()["cancelled"] == [op_id]
        cancelling = await victim.in_state(op_id, State.CANCELLING)
        assert cancelling["until"]
    finally:
        os.kill(pid, signal.SIGCONT)
    operation = await victim.ended(op_id)
    assert (operation["state"], operation["reason"]) == (State.CANCELLED, Reason.NODE_DRAINED)
    assert victim.standing("agent-2", op_id) == "cancelled"
    assert not victim.live("agent-2", "drained").exists()
    await victim.http.post("/api/nodes/agent-2/resume")
    await node_is(victim, "agent-2", "healthy")


async def test_a_removed_node_stops_its_work_and_stays_away(victim: Fleet, source: SlowSource) -> None:
    """H8, H10."""
    source.bytes_per_second = MB / 10
    op_id = await victim.accepted("agent-2", **offer(source, "removed-under-it", package(6 * MB)))
    await victim.in_state(op_id, State.RUNNING)
    answer = await victim.http.delete("/api/nodes/agent-2")
    assert answer.json() == {"message": "node deregistered", "status": None, "cancelled": [op_id]}
    operation = await victim.ended(op_id)
    assert (operation["state"], operation["reason"]) == (State.CANCELLED, Reason.NODE_REMOVED)
    retired = victim.machine.folder / "agents" / "agent-2" / "retired.json"
    async with asyncio.timeout(30):
        while not retired.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    names = [node["name"] for node in (await victim.http.get("/api/nodes")).json()]
    assert names == ["agent-1"]


async def node_is(victim: Fleet, node: str, status: str) -> None:
    async with asyncio.timeout(60):
        while (await victim.http.get(f"/api/nodes/{node}")).json()["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

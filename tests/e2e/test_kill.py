"""Kill it and watch: whichever process dies during an install, the install ends once and correctly."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nodesmith.domain.operation import Reason, State
from nodesmith.runtime.temporal import connect
from tests.deadlines import HANGS_S
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.stack.commands import Machine

pytestmark = [pytest.mark.private_stack, pytest.mark.timeout(300)]

MB = 1024 * 1024


@pytest.fixture(scope="module")
async def victim(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A private stack with short timeouts, because the tests kill everything in it."""
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
    """Start a slow install; return its id and the expected digest of the installed file."""
    built = package(6 * MB)
    source.bytes_per_second = 6 * MB / seconds
    op_id = await victim.accepted("agent-1", **offer(source, name, built))
    await victim.in_state(op_id, State.RUNNING)
    await source.going.wait()
    return op_id, built.noise_sha256


@pytest.mark.parametrize("name", ["api", "worker", "agent-1", "nats", "postgres", "temporal"])
async def test_install_survives_the_death_of_any_process(victim: Fleet, source: SlowSource, name: str) -> None:
    """G4; S31, superseded: it continues, instead of being reaped as failed. Promise 2."""
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


async def test_cancel_during_worker_outage_is_applied_after_restart(victim: Fleet, source: SlowSource) -> None:
    """S30, G3."""
    op_id, _ = await begin(victim, source, "cancelled-meanwhile", seconds=120)
    victim.kill("worker")
    answer = await victim.cancel(op_id)
    assert answer.status_code == 202
    operation = await victim.ended(op_id)
    assert operation["state"] == State.CANCELLED
    assert not victim.live("agent-1", "cancelled-meanwhile").exists()


async def test_cancel_reaches_node_after_worker_crash_during_dispatch(victim: Fleet, source: SlowSource) -> None:
    """The run has not recorded the command, but its row has, so the node gets the cancel before the run ends."""
    source.bytes_per_second = MB / 20
    op_id = await victim.accepted("agent-1", **offer(source, "asked-by-the-dead", package(6 * MB)))
    await source.going.wait()
    victim.kill("worker")
    answer = await victim.cancel(op_id)
    assert answer.status_code == 202
    operation = await victim.ended(op_id)
    assert (operation["state"], victim.standing("agent-1", op_id)) == (State.CANCELLED, "cancelled")
    assert not victim.live("agent-1", "asked-by-the-dead").exists()


async def test_run_terminated_in_web_ui_ends_the_row_and_stops_the_node(victim: Fleet, source: SlowSource) -> None:
    op_id, _ = await begin(victim, source, "terminated", seconds=120)
    await terminate(victim, (await victim.operation(op_id))["workflow_id"])
    operation = await victim.ended(op_id)
    assert (operation["state"], operation["reason"]) == (State.FAILED, Reason.ENDED_OUTSIDE)
    sent = source.sent["terminated.tar.gz"]
    await victim.ended(await victim.accepted("agent-1", backend="echo", force=True))
    assert source.sent["terminated.tar.gz"] <= sent + MB
    assert not victim.live("agent-1", "terminated").exists()


async def terminate(victim: Fleet, workflow_id: str) -> None:
    client = await connect(victim.machine.temporal_settings())
    await client.get_workflow_handle(workflow_id).terminate("in the Web UI")


async def test_operation_waits_for_an_offline_node_and_resumes_on_its_return(victim: Fleet, source: SlowSource) -> None:
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


async def test_install_survives_the_death_of_all_processes(victim: Fleet, source: SlowSource) -> None:
    op_id, noise = await begin(victim, source, "survives-everything")
    for name in ("api", "worker", "agent-1", "nats", "postgres", "temporal"):
        victim.kill(name)
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert victim.noise_on_disk("agent-1", "survives-everything") == noise


async def test_install_resumes_after_kill_of_the_parent_and_new_up(victim: Fleet, source: SlowSource) -> None:
    op_id, noise = await begin(victim, source, "survives-the-parent")
    parent = victim.machine.status()["pid"]
    children = list(victim.machine.pids().values())
    os.kill(parent, signal.SIGKILL)
    async with asyncio.timeout(HANGS_S):
        while any(alive(pid) for pid in children):  # noqa: ASYNC110 - the kernel ends them
            await asyncio.sleep(0.05)
    victim.machine.up(agents=2)
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert victim.noise_on_disk("agent-1", "survives-the-parent") == noise


async def test_node_restarted_during_install_finishes_it_and_is_healthy(victim: Fleet, source: SlowSource) -> None:
    """R18, H5: SIGTERM takes the node offline but does not drain it: the operation waits and resumes on its return."""
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
    """Kill NATS and suspend the supervisor, so that it is not restarted before the block ends."""
    parent, pid = victim.machine.status()["pid"], victim.machine.pids()["nats"]
    os.kill(parent, signal.SIGSTOP)
    try:
        victim.kill("nats")
        yield
    finally:
        os.kill(parent, signal.SIGCONT)
    await victim.restarted("nats", pid)


async def test_operations_are_accepted_and_wait_during_a_nats_outage(victim: Fleet) -> None:
    """Design 9: degraded, not hanging. Promise 2: the operation reports what it waits for, and until when."""
    async with nats_down(victim):
        op_id = await victim.accepted("agent-1", backend="echo", force=True)
        waiting = await victim.in_state(op_id, State.WAITING)
        assert (waiting["reason"], waiting["dispatched_at"]) == (Reason.NATS_DOWN, None)
        assert waiting["until"]
        assert waiting["message"].startswith("waiting: ")
        listed = (await victim.http.get("/api/v1/operations")).json()["items"]
        assert [entry["state"] for entry in listed if entry["op_id"] == op_id] == ["waiting"]
        theirs = (await victim.http.get("/api/operations")).json()["operations"]
        assert [entry["taskType"] for entry in theirs if entry["jobID"] == op_id] == ["Waiting"]
    operation = await victim.ended(op_id)
    assert operation["state"] == State.SUCCEEDED, operation["message"]
    assert State.FAILED not in [event["state"] for event in operation["timeline"]]


async def test_cancel_waits_for_the_acknowledgement_of_a_frozen_node(victim: Fleet, source: SlowSource) -> None:
    """Promise 3: the command is in the node's socket, so the run ends only after the node's acknowledgement."""
    source.bytes_per_second = MB / 20
    await victim.ended(await victim.accepted("agent-2", backend="echo", force=True))  # its connection is up
    pid = victim.machine.pids()["agent-2"]
    os.kill(pid, signal.SIGSTOP)
    try:
        op_id = await victim.accepted("agent-2", **offer(source, "drained", package(6 * MB)))
        await victim.in_state(op_id, State.WAITING)
        drained = await victim.http.post("/api/v1/nodes/agent-2/drain", json={"reason": "new disks"})
        assert drained.json()["cancelled"] == [op_id]
        cancelling = await victim.in_state(op_id, State.CANCELLING)
        assert cancelling["until"]
    finally:
        os.kill(pid, signal.SIGCONT)
    operation = await victim.ended(op_id)
    assert (operation["state"], operation["reason"]) == (State.CANCELLED, Reason.NODE_DRAINED)
    assert victim.standing("agent-2", op_id) == "cancelled"
    assert not victim.live("agent-2", "drained").exists()
    await victim.http.post("/api/v1/nodes/agent-2/resume")
    await node_is(victim, "agent-2", "healthy")


async def test_removed_node_stops_its_work_and_does_not_return(victim: Fleet, source: SlowSource) -> None:
    """H8, H10."""
    source.bytes_per_second = MB / 10
    op_id = await victim.accepted("agent-2", **offer(source, "removed-under-it", package(6 * MB)))
    await victim.in_state(op_id, State.RUNNING)
    answer = await victim.http.delete("/api/v1/nodes/agent-2")
    assert answer.json() == {"message": "node deregistered", "status": None, "cancelled": [op_id]}
    operation = await victim.ended(op_id)
    assert (operation["state"], operation["reason"]) == (State.CANCELLED, Reason.NODE_REMOVED)
    retired = victim.machine.folder / "agents" / "agent-2" / "retired.json"
    async with asyncio.timeout(HANGS_S):
        while not retired.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)
    names = [node["name"] for node in (await victim.http.get("/api/v1/nodes")).json()["items"]]
    assert names == ["agent-1"]


async def node_is(victim: Fleet, node: str, status: str) -> None:
    async with asyncio.timeout(60):
        while (await victim.http.get(f"/api/v1/nodes/{node}")).json()["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

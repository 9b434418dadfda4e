"""Real processes, killed during an admission, or suspended there and resumed late."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from nodesmith.contracts.temporal.batches import member_op_id
from nodesmith.domain.operation import ENDED, Reason, State
from tests.deadlines import HANGS_S
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.e2e.test_batches import batch_ended
from tests.e2e.test_install import MB, unique
from tests.e2e.test_replicas import environment_of, ready
from tests.servers import free_port
from tests.stack.commands import NODESMITH, Machine

pytestmark = [pytest.mark.private_stack, pytest.mark.long, pytest.mark.timeout(600)]

NODES = [f"sim-{number}" for number in range(1, 13)]
IN_MEMORY = {"uri": "https://example.invalid/simulated.tar.gz", "sha256": "0" * 64}
"""simulated nodes fetch nothing"""
TRIES = 2


@pytest.fixture(scope="module")
async def victim(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A private stack with one agent, twelve simulated nodes and short timeouts."""
    quick = {
        "NODESMITH_POLICY__HEARTBEAT_TIMEOUT": "5",
        "NODESMITH_POLICY__SILENCE": "3",
        "NODESMITH_FLEET_TICK": "3",
    }
    machine = Machine(tmp_path_factory.mktemp("chaos") / "home", environment=quick)
    machine.up(agents=1)
    playing = await asyncio.create_subprocess_exec(
        *(NODESMITH, "simulate", "--home", str(machine.folder), "--nodes", str(len(NODES)), "--install-seconds", "0.3"),
        env=machine.full_environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        fleet = Fleet(machine)
        async with asyncio.timeout(60):
            while await healthy(fleet) < len(NODES) + 1:  # noqa: ASYNC110 - other processes join
                await asyncio.sleep(0.1)
        yield fleet
        await fleet.http.aclose()
    finally:
        playing.terminate()
        await playing.wait()
        machine.down()


async def healthy(fleet: Fleet) -> int:
    return sum(node["status"] == "healthy" for node in (await fleet.http.get("/api/v1/nodes")).json()["items"])


async def asked(fleet: Fleet, name: str) -> str:
    """Start a batch on every simulated node; retry with the same key until the API answers."""
    body = {**IN_MEMORY, "name": name, "nodes": NODES, "max_parallel": 0}
    async with asyncio.timeout(90):
        while True:
            try:
                answer = await fleet.http.post("/api/v1/batches", json=body, headers={"Idempotency-Key": name})
            except httpx2.TransportError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code != httpx2.codes.SERVICE_UNAVAILABLE:
                assert answer.status_code == 202, answer.text
                batch_id: str = answer.json()["batch_id"]
                return batch_id
            await asyncio.sleep(0.2)


async def assert_once_each(fleet: Fleet, batch_id: str) -> None:
    """Check all operations on that backend, including those of a batch whose answer was lost."""
    batch = await batch_ended(fleet, batch_id)
    assert batch["counts"] == {"succeeded": len(NODES)}, batch
    query = {"scope": "ended", "backend": batch["backend"]}
    listed = await fleet.http.get("/api/v1/operations", params=query)
    operations: list[dict[str, Any]] = listed.json()["items"]
    planned = {member["node_id"]: member_op_id(batch_id, member["node_id"]) for member in batch["members"]}
    assert Counter(each["node_id"] for each in operations) == Counter(list(planned)), "targets = operations"
    assert {each["node_id"]: each["op_id"] for each in operations} == planned
    for op_id in planned.values():
        story = [event["state"] for event in (await fleet.operation(op_id))["timeline"]]
        assert [state for state in story if state in ENDED] == ["succeeded"], story


@pytest.mark.parametrize("name", ["worker", "api"])
async def test_batch_admission_survives_kills_at_many_moments(victim: Fleet, name: str) -> None:
    """Promise 2: one kill hits batches at different moments; each has one operation per target."""
    for apart in (0.01, 0.03, 0.08):
        starting = []
        for _ in range(6):
            starting.append(asyncio.create_task(asked(victim, unique(f"killed-{name}"))))
            await asyncio.sleep(apart)
        pid = victim.machine.pids()[name]
        victim.kill(name)
        await victim.restarted(name, pid)
        for batch_id in await asyncio.gather(*starting):
            await assert_once_each(victim, batch_id)


@asynccontextmanager
async def another(victim: Fleet, name: str, module: str, **changes: str) -> AsyncIterator[None]:
    """Start a second process of that kind with the environment of the first."""
    environment = {**os.environ, **environment_of(victim.machine.pids()[name]), **changes}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, env=environment)
    try:
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), HANGS_S)


async def story_of(victim: Fleet, op_id: str) -> dict[str, Any]:
    """Return all fields of an operation except those derived on read."""
    operation = await victim.operation(op_id)
    return {name: value for name, value in operation.items() if name not in {"temporal_url", "stalled"}}


async def test_suspended_worker_that_resumes_late_changes_nothing(victim: Fleet, source: SlowSource) -> None:
    """Another worker has finished the operation meanwhile; row, events and node stay unchanged."""
    name, built = unique("slept"), package(6 * MB)
    source.bytes_per_second = 1.5 * MB
    op_id = await victim.accepted("agent-1", **offer(source, name, built))
    await victim.in_state(op_id, State.RUNNING)
    sleeper = victim.machine.pids()["worker"]
    os.kill(sleeper, signal.SIGSTOP)
    try:
        async with another(victim, "worker", "nodesmith.workers.main"):
            assert (await victim.ended(op_id))["state"] == State.SUCCEEDED
            before, sent = await story_of(victim, op_id), source.sent[f"{name}.tar.gz"]
    finally:
        os.kill(sleeper, signal.SIGCONT)
    next_id = await victim.accepted("agent-1", **offer(source, unique("awake"), package(6 * MB)))
    await victim.until(next_id, lambda operation: operation["progress"]["bytes_done"] > 0)
    # It writes progress again in the order of arrival, so a buffered report of the first one would be written too.
    awake = await victim.ended(next_id)
    assert awake["state"] == State.SUCCEEDED, "finished by the resumed worker: there is no other"
    assert await story_of(victim, op_id) == before
    assert victim.noise_on_disk("agent-1", name) == built.noise_sha256
    assert source.sent[f"{name}.tar.gz"] == sent


async def test_suspended_api_that_resumes_late_changes_nothing(victim: Fleet) -> None:
    """It was suspended between the start of the run and its order; the run has ended as `not_admitted` when it resumes.

    It answers 503 and writes nothing. The repeated request is admitted as another operation.
    """
    port = free_port()
    other = Fleet(victim.machine)
    other.http = httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=victim.http.headers, timeout=60, trust_env=False
    )
    async with another(victim, "api", "nodesmith.api.main", NODESMITH_API_PORT=str(port)):
        async with asyncio.timeout(60):
            while not await ready(other):  # noqa: ASYNC110 - another process starts
                await asyncio.sleep(0.1)
        for _ in range(TRIES):
            await suspend_during_a_run(victim, other)
        await other.http.aclose()


async def suspend_during_a_run(victim: Fleet, other: Fleet) -> None:
    """Suspend the API after it has started a run, until the run has ended without its order."""
    pids, name = victim.machine.pids(), unique("slept")
    # After a second without an answer, the API probes Temporal before it sends anything.
    await victim.accepted("sim-1", **IN_MEMORY, name=unique("before"))
    os.kill(pids["temporal"], signal.SIGSTOP)
    asking = asyncio.create_task(victim.install("sim-1", **IN_MEMORY, name=name))
    try:
        await asyncio.sleep(0.3)  # its request is at Temporal now, which offers no event to await
        os.kill(pids["api"], signal.SIGSTOP)
    finally:
        os.kill(pids["temporal"], signal.SIGCONT)
    try:
        op_id = await only_operation(other, name)
        ended = await other.ended(op_id)
        assert (ended["state"], ended["reason"]) == (State.FAILED, Reason.NOT_ADMITTED), ended["message"]
        before = await story_of(other, op_id)
    finally:
        os.kill(pids["api"], signal.SIGCONT)
    answer = await asking
    assert answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE, answer.text
    await asyncio.gather(*(victim.http.get("/readyz") for _ in range(5)))
    assert await story_of(other, op_id) == before
    assert await only_operation(other, name) == op_id
    again = await victim.accepted("sim-1", **IN_MEMORY, name=name)
    assert (await victim.ended(again))["state"] == State.SUCCEEDED


async def only_operation(fleet: Fleet, backend: str) -> str:
    """Wait for the one operation on that backend and return it."""
    async with asyncio.timeout(60):
        while True:
            query = {"scope": "all", "backend": backend}
            listed = (await fleet.http.get("/api/v1/operations", params=query)).json()["items"]
            if found := [each["op_id"] for each in listed]:
                [op_id] = found
                return str(op_id)
            await asyncio.sleep(0.05)

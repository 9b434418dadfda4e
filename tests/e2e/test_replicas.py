"""Two API replicas of one system give the same answers."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from nodesmith.domain.operation import State
from tests.deadlines import HANGS_S
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.e2e.test_install import MB, read_stream, unique
from tests.servers import free_port

TAKEN = {"NODESMITH_LISTEN_PORT", "NODESMITH_TEMPORAL_UI_SERVER"}
"""settings that open a port in addition to the API's"""


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment of a running process, without taken ports, to start a replica with it."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    whole = dict(entry.decode().split("=", 1) for entry in entries if b"=" in entry)
    return {name: value for name, value in whole.items() if name not in TAKEN}


@pytest.fixture(scope="module")
async def replica(fleet: Fleet) -> AsyncIterator[Fleet]:
    """The same fleet through a second API process."""
    port = free_port()
    environment = {**environment_of(fleet.machine.pids()["api"]), "NODESMITH_API_PORT": str(port)}
    whole = {**os.environ, **environment}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "nodesmith.api.main", env=whole)
    other = Fleet(fleet.machine)
    other.http = httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers=fleet.http.headers, timeout=60, trust_env=False
    )
    try:
        async with asyncio.timeout(60):
            while not await ready(other):  # noqa: ASYNC110 - another process starts
                await asyncio.sleep(0.1)
        yield other
    finally:
        await other.http.aclose()
        process.terminate()
        assert await asyncio.wait_for(process.wait(), HANGS_S) == 0


async def ready(fleet: Fleet) -> bool:
    try:
        return (await fleet.http.get("/readyz")).status_code == 200
    except httpx2.TransportError:
        return False


async def test_twenty_requests_through_two_replicas_share_one_run_and_one_download(
    fleet: Fleet, replica: Fleet, source: SlowSource
) -> None:
    """Promise 1: from any number of API replicas."""
    name, built = unique("both"), package(2 * MB)
    body = offer(source, name, built)
    source.bytes_per_second = 2 * MB
    answers = await asyncio.gather(*([fleet, replica][n % 2].install("agent-2", **body) for n in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    [op_id] = {answer.json()["op_id"] for answer in answers}
    assert (await replica.ended(op_id))["state"] == State.SUCCEEDED
    assert source.sent[f"{name}.tar.gz"] == len(built.content)


async def test_stream_resumes_at_the_other_replica_without_gap_or_duplicate(
    fleet: Fleet, replica: Fleet, source: SlowSource
) -> None:
    body = offer(source, unique("read"), package(2 * MB))
    source.bytes_per_second = 2 * MB
    op_id = await fleet.accepted("agent-1", **body)
    before, _ = await read_stream(fleet, op_id, 0, "queued")
    after, ticks = await read_stream(replica, op_id, before[-1][0], "succeeded")
    assert [state for _, state in before + after] == ["queued", "running", "succeeded"]
    assert ticks > 0, "progress reaches every replica"


async def test_cancel_at_one_replica_is_visible_at_the_other(fleet: Fleet, replica: Fleet, source: SlowSource) -> None:
    """H43: there is one source of truth, and no copy that could be stale."""
    body = offer(source, unique("crossed"), package(4 * MB))
    source.bytes_per_second = MB / 4
    op_id = await fleet.accepted("agent-3", **body)
    await fleet.in_state(op_id, State.RUNNING)
    assert (await replica.cancel(op_id)).status_code == 202
    assert (await fleet.ended(op_id))["state"] == State.CANCELLED

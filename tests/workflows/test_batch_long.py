"""A batch with a long history continues as new without losing state."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from nodesmith.contracts.temporal import batches as names
from nodesmith.contracts.temporal.batches import BatchOrder, BatchState
from nodesmith.domain.operation import State
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect, prepare_namespace
from nodesmith.stack.servers import embedded
from nodesmith.stack.servers.temporal import TemporalServer
from nodesmith.workflows.batch import Batch
from tests.deadlines import HANGS_S
from tests.fakes.batch_activities import Fleet, Handle, start, worker_of
from tests.servers import free_port

SHORT_HISTORY = {"limit.historyCount.suggestContinueAsNew": "12", "history.maximumSignalsPerExecution": "15"}
MANY = 25
"""more signals than one run may get"""


@pytest.fixture(scope="module")
async def forgetful(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A server that suggests to continue as new after a few events."""
    folder: Path = tmp_path_factory.mktemp("temporal")
    server = TemporalServer(
        database=folder / "temporal.db",
        port=free_port(),
        web_port=free_port(),
        metrics_port=free_port(),
        log=folder / "temporal.log",
        dynamic_config=SHORT_HISTORY,
    )
    async with embedded.running(server):
        client = await connect(ControlSettings(temporal_address=server.address))
        await prepare_namespace(client)
        yield client


async def run_id(handle: Handle) -> str | None:
    return (await handle.describe()).run_id


async def test_a_long_batch_keeps_window_failures_and_pause_over_new_runs(forgetful: Client) -> None:
    """The first node is away all the time, one fails in the first run and one in a later one: that is the limit."""
    fleet = Fleet()
    async with worker_of(forgetful, fleet) as queue:
        handle = await start(forgetful, queue, 9, max_parallel=1, max_failures=2)
        first = await run_id(handle)
        await fleet.until_asked("n0")
        await fleet.go_away("n0")
        await fleet.until_asked("n1")
        await fleet.settle("n1", State.FAILED)
        for number in range(2, 6):
            await fleet.until_asked(f"n{number}")
            await fleet.settle(f"n{number}", State.SUCCEEDED)
        await fleet.until_asked("n6")
        await handle.signal(names.SIGNAL_PAUSE, BatchOrder(by="ada"))
        await fleet.until_state(BatchState.PAUSED)
        await fleet.settle("n6", State.SUCCEEDED)
        await handle.signal(names.SIGNAL_RESUME, BatchOrder(by="ada"))
        await fleet.until_asked("n7")
        assert await run_id(handle) != first, "it has continued as new"
        await fleet.settle("n7", State.FAILED)
        await fleet.until_state(BatchState.STOPPED)
        progress = await handle.query(Batch.progress)
        assert (progress.failures, progress.running, progress.waiting) == (2, 1, 0)
        await fleet.settle("n0", State.SUCCEEDED)
        await fleet.until(lambda fleet: fleet.closes[-1].detail == "batch stopped after 2 failures")
    assert fleet.asked == [f"n{number}" for number in range(8)], "nobody was asked twice, and n8 was not started"
    opened = [close.state for close in fleet.closes]
    assert opened[:2] == [BatchState.PAUSED, BatchState.RUNNING], "no run says again what another has said"


async def test_a_paused_batch_takes_any_number_of_requests_for_a_slot(forgetful: Client) -> None:
    """A refused signal tells a member that its batch is gone, and it would begin although the batch is paused."""
    fleet = Fleet()
    async with worker_of(forgetful, fleet) as queue:
        handle = await start(forgetful, queue, 2, max_parallel=1)
        await fleet.until_asked("n0")
        await fleet.go_away("n0")
        await fleet.until_asked("n1")
        await handle.signal(names.SIGNAL_PAUSE, BatchOrder(by="ada"))
        await fleet.until_state(BatchState.PAUSED)
        await fleet.until_watched("n0", "n1")
        for _ in range(MANY):
            await handle.signal(names.SIGNAL_READY, fleet.returned("n0"))
            assert (await handle.query(Batch.progress)).running == 2, "it has read the signal"
        for node in ("n0", "n1"):
            await fleet.settle(node, State.SUCCEEDED)
        await asyncio.wait_for(handle.result(), HANGS_S)

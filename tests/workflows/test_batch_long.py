"""A batch whose history gets long goes on in a new run as if nothing had happened."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from contracts import batches as names
from contracts.batches import BatchOrder, BatchState
from domain.operation import State
from runtime.settings import ControlSettings
from runtime.temporal import connect, prepare_namespace
from stack import servers
from stack.temporal import TemporalServer
from tests.servers import free_port
from tests.workflows.played_fleet import Fleet, Handle, start, worker_of
from workflows.batch import Batch

SHORT_HISTORY = {"limit.historyCount.suggestContinueAsNew": "12"}


@pytest.fixture(scope="module")
async def forgetful(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """A server that suggests to continue as new after a few events."""
    folder: Path = tmp_path_factory.mktemp("temporal")
    server = TemporalServer(
        database=folder / "temporal.db",
        port=free_port(),
        ui_port=free_port(),
        http_port=free_port(),
        metrics_port=free_port(),
        log=folder / "temporal.log",
        dynamic_config=SHORT_HISTORY,
    )
    async with servers.running(server):
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

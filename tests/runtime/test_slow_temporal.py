"""Calls wait for a slow Temporal that answers other calls, and fail on a silent one."""

import asyncio
import os
import signal
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from nodesmith.contracts.temporal.operations import Intent, OperationInput, OperationRequest, operation_workflow_id
from nodesmith.domain.errors import OutcomeUnknown, ServiceUnavailable
from nodesmith.domain.identity import new_op_id
from nodesmith.runtime import temporal_calls
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import LIST_LIMIT_S, TemporalRuns, connect, prepare_namespace
from tests import servers
from tests.servers import TemporalForTests

HANGS_S = 60
SLOW_S = 3.0
"""longer than a silent Temporal is waited for, shorter than SQLite's own limit"""


@pytest.fixture(scope="module")
async def temporal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TemporalForTests]:
    """A server of our own: it is made slow, and stopped."""
    async with servers.temporal(tmp_path_factory.mktemp("slow-temporal")) as server:
        yield server


@pytest.fixture(scope="module")
async def client(temporal: TemporalForTests) -> Client:
    client = await connect(ControlSettings(temporal_address=temporal.server.address))
    await prepare_namespace(client)
    return client


@pytest.fixture
def runs(client: Client) -> TemporalRuns:
    """As a process has it that has just started: it has heard nothing yet."""
    return TemporalRuns(client, queue=f"nobody-{uuid.uuid4()}")


def an_operation() -> OperationInput:
    request = OperationRequest(
        op_id=new_op_id(),
        node_id=f"node-{uuid.uuid4()}",
        node_name="node-7",
        wanted=Intent(backend="echo", family="echo", version="2", uri="/artifacts/echo-2.tar.gz"),
        requested_by="ada",
        created_at=datetime.now(UTC),
    )
    return OperationInput(request=request)


def workflow_id_of(operation: OperationInput) -> str:
    return operation_workflow_id(operation.request.node_id, operation.request.wanted.family)


@contextmanager
def writes_blocked(database: Path) -> Iterator[None]:
    """Another process is writing: Temporal's own writes wait, everything else is answered."""
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        writer.execute("ROLLBACK")
        writer.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_slow_start_is_waited_for(temporal: TemporalForTests, runs: TemporalRuns) -> None:
    operation = an_operation()
    async with asyncio.timeout(HANGS_S):
        with writes_blocked(temporal.server.database):
            starting = asyncio.create_task(runs.start(operation, intent="i"))
            done, _ = await asyncio.wait([starting], timeout=SLOW_S)
            assert not done, starting
        run_id = await starting
    run = await runs.describe(workflow_id_of(operation))
    assert run is not None
    assert (run.run_id, run.op_id) == (run_id, operation.request.op_id)


async def test_stopped_server_is_down_and_was_sent_nothing(
    temporal: TemporalForTests, client: Client, runs: TemporalRuns
) -> None:
    operation = an_operation()
    with stopped(temporal.child.pid):
        async with asyncio.timeout(HANGS_S):
            with pytest.raises(ServiceUnavailable, match="does not answer") as refused:
                await runs.start(operation, intent="i")
    assert type(refused.value) is ServiceUnavailable
    await runs.ping()
    assert await runs.describe(workflow_id_of(operation)) is None


async def test_server_that_stops_during_a_start_leaves_it_unknown_and_it_may_be_repeated(
    temporal: TemporalForTests, runs: TemporalRuns
) -> None:
    operation = an_operation()
    await runs.ping()
    with stopped(temporal.child.pid):
        async with asyncio.timeout(HANGS_S):
            with pytest.raises(OutcomeUnknown, match="not known whether"):
                await runs.start(operation, intent="i")
    run_id = await runs.start(operation, intent="i")
    run = await runs.describe(workflow_id_of(operation))
    assert run is not None
    assert (run.run_id, run.op_id) == (run_id, operation.request.op_id)


def test_how_long_temporal_is_waited_for() -> None:
    """A silent one is a 503 within 2 s; one that answers others is waited for as long as PostgreSQL is."""
    assert (temporal_calls.SILENCE_S, temporal_calls.BUSY_LIMIT_S, LIST_LIMIT_S) == (1.8, 20.0, 60.0)
    assert temporal_calls.PROBE_EVERY_S * 4 < temporal_calls.SILENCE_S
    assert temporal_calls.RECENT_ANSWER_S == 1.0

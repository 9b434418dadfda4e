"""A client of the shared Temporal server, and one task queue per test."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from temporalio.client import Client

from nodesmith.contracts.temporal.dispatch import DispatchResult
from nodesmith.contracts.temporal.operations import Policy
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect
from tests.fakes.operation_activities import QUICK, Operation, Station, start, worker_of

Begin = Callable[..., Awaitable[Operation]]


@pytest.fixture(scope="session")
async def client(temporal_address: str) -> Client:
    return await connect(ControlSettings(temporal_address=temporal_address))


@pytest.fixture
def queue() -> str:
    return f"test-{uuid.uuid4()}"


@pytest.fixture
async def begin(client: Client, queue: str) -> AsyncIterator[Begin]:
    """Start an operation with a live worker: `operation = await begin(policy=..., at_once=...)`."""
    station = Station()

    async def started(policy: Policy = QUICK, at_once: DispatchResult | None = None) -> Operation:
        if at_once is not None:
            station.answer_dispatch(at_once)
        return await start(client, station, queue, policy)

    async with worker_of(client, station, queue):
        yield started

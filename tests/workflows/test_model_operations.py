"""Loads and unloads as workflows: one attempt, no wait for the node, a wait for the backend."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from temporalio.client import Client, WorkflowFailureError

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import NodeUnreachable
from nodesmith.contracts.temporal.operations import CancelRequest, Intent, Limits
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason, State
from nodesmith.services.operations.admission import operation_policy
from tests.workflows.station import LOAD, QUICK, UNLOAD, Operation, Station, start, worker_of

POLICY = operation_policy(QUICK, Kind.LOAD, Limits())


@asynccontextmanager
async def playing(client: Client, wanted: Intent, *, after: str = "") -> AsyncIterator[Operation]:
    station, queue = Station(), f"models-{uuid.uuid4()}"
    operation = await start(client, station, queue, POLICY, wanted=wanted, after=after)
    async with worker_of(client, station, queue):
        yield operation


async def end_of(operation: Operation) -> tuple[State, Reason | None]:
    """The end of the row; a red run is expected."""
    with pytest.raises(WorkflowFailureError):
        await operation.result()
    last = operation.station.rows[-1]
    return last.state, last.reason


@pytest.mark.parametrize("wanted", [LOAD, UNLOAD], ids=["load", "unload"])
async def test_load_and_unload_succeed(client: Client, wanted: Intent) -> None:
    async with playing(client, wanted) as operation:
        await operation.begin_on_node()
        operation.station.send_result(operation.succeeded())
        assert (await operation.result()).state is State.SUCCEEDED


@pytest.mark.parametrize("reason", [Reason.NODE_ERROR, Reason.SOURCE_DOWN, Reason.DID_NOT_START])
async def test_a_failed_load_is_not_repeated(client: Client, reason: Reason) -> None:
    """The scheduler decides what follows: another node may be better than a second attempt."""
    async with playing(client, LOAD) as operation:
        operation.station.send_result(operation.failed(reason))
        assert await end_of(operation) == (State.FAILED, reason)
        assert len(operation.station.dispatches) == 1


@pytest.mark.parametrize("wanted", [LOAD, UNLOAD], ids=["load", "unload"])
async def test_an_absent_node_is_not_waited_for(client: Client, wanted: Intent) -> None:
    station, queue = Station(), f"models-{uuid.uuid4()}"
    station.answer_dispatch(NodeUnreachable())
    operation = await start(client, station, queue, POLICY, wanted=wanted)
    async with worker_of(client, station, queue):
        assert await end_of(operation) == (State.EXPIRED, Reason.NODE_NEVER_CAME)


async def test_a_load_is_sent_when_its_backend_is_installed(client: Client) -> None:
    async with playing(client, LOAD, after="install") as operation:
        row = await operation.station.reached(State.WAITING)
        assert (row.reason, row.detail) == (Reason.BACKEND, "operation install")
        await asyncio.sleep(0.1)
        assert operation.station.dispatches == []
        operation.station.end_other(State.SUCCEEDED)
        await operation.station.commands.get()
        operation.station.send_result(operation.succeeded())
        assert (await operation.result()).state is State.SUCCEEDED


async def test_a_load_fails_with_the_installation_of_its_backend(client: Client) -> None:
    async with playing(client, LOAD, after="install") as operation:
        operation.station.end_other(State.DEAD_LETTER, Reason.ATTEMPTS_EXHAUSTED)
        assert await end_of(operation) == (State.FAILED, Reason.NOT_INSTALLED)
        assert "install did not install it: gave up" in operation.station.rows[-1].detail
        assert operation.station.dispatches == []


async def test_a_load_that_waits_for_its_backend_is_cancelled_at_once(client: Client) -> None:
    async with playing(client, LOAD, after="install") as operation:
        await operation.station.reached(State.WAITING)
        await operation.handle.signal(names.SIGNAL_CANCEL, CancelRequest(op_id=operation.op_id, by="ada"))
        assert (await operation.result()).state is State.CANCELLED
        assert operation.station.dispatches == []

"""Continue-as-new carries over the whole state, so that long waits keep their limits."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from operator import attrgetter

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import CancelResult, NodeUnreachable
from nodesmith.contracts.temporal.operations import CancelRequest, OperationInput, Policy, RunState
from nodesmith.domain.operation import Reason, State
from nodesmith.stack.servers import binaries
from nodesmith.workflows.backend_operation import BackendOperation
from tests.fakes.operation_activities import Operation, Station, a_request, worker_of

EVENTS_OF_A_RUN = 20
"""then Temporal suggests to continue as new: after about three looks for an absent node"""

HANGS_S = 60

DERIVED = {
    "_request": "from the input",
    "_policy": "from the input",
    "_record": "holds what is not written yet; a run continues as new only when there is nothing",
    "_node": "holds the follower; a run continues as new only without one",
    "_waits": "holds the policy from the input, and the slot with its ids",
    "_cancellation": "holds ids and policy from the input",
    "_backend": "holds an id from the input",
}
PARTS = {
    "_record": {
        "_request",
        "_run",
        "_outcome",  # set with the end, after which nothing continues
        "_row_end",  # likewise
        "_unwritten",  # empty when a run continues
        "_background_rows",  # likewise
        "_writing_behind",  # likewise
        "_reset_noted",  # a run that continues is a new one: it was not reset
    },
    "_node": {"_request", "_policy", "_run", "_follower"},  # no follower when a run continues
    "_waits": {"_policy", "_run", "_record", "_slot"},
    "_waits._slot": {"_op_id", "_batch_id", "_run"},
    "_backend": {"_after", "_run", "_record"},
    "_cancellation": {"_op_id", "_kind", "_policy", "_run", "_record", "_node"},
}


def test_every_field_of_a_run_is_carried_or_named_as_derived() -> None:
    """A new attribute of the run belongs into `RunState`, unless it is derived: then say so here."""
    carried = RunState(failures=3)
    run = BackendOperation(OperationInput(request=a_request("q"), carried=carried))
    assert set(vars(run)) == {*DERIVED, "_run"}
    assert run._run is carried
    for part, known in PARTS.items():
        held = vars(attrgetter(part)(run))
        assert set(held) == known, part
        assert held["_run"] is carried, "one state, shared by all parts"


@pytest.fixture(scope="module")
async def skipping() -> AsyncIterator[Client]:
    """A server whose timers take no time, and that suggests to continue as new early."""
    settings = {
        "frontend.WorkflowTimeSkippingEnabled": "true",
        "limit.historyCount.suggestContinueAsNew": str(EVENTS_OF_A_RUN),
    }
    extra = [part for name, value in settings.items() for part in ("--dynamic-config-value", f"{name}={value}")]
    async with await WorkflowEnvironment.start_time_skipping_v2(
        dev_server_existing_path=str(binaries.program("temporal")),
        data_converter=pydantic_data_converter,
        search_attributes=list(names.SEARCH_ATTRIBUTES),
        dev_server_startup_timeout=timedelta(seconds=60),
        dev_server_extra_args=extra,
    ) as environment:
        yield environment.client


async def begin(client: Client, station: Station, queue: str, policy: Policy) -> Operation:
    """By the client of the environment, which asks for skipped time."""
    request = a_request(queue)
    workflow_id = names.operation_workflow_id(request.node_id, "echo")
    argument = OperationInput(request=request, policy=policy)
    handle = await client.start_workflow(
        BackendOperation.run, argument, id=workflow_id, task_queue=names.node_queue(queue)
    )
    return Operation(station, handle, request.op_id)


async def ends_red(operation: Operation) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as raised:
        await asyncio.wait_for(operation.handle.result(), HANGS_S)
    assert isinstance(raised.value.cause, ApplicationError)
    return raised.value.cause


async def test_limit_of_seven_days_survives_continue_as_new(skipping: Client) -> None:
    """Promise 2: an operation says until when it waits, and that time does not slide with every run."""
    station, queue = Station(), f"test-{uuid.uuid4()}"
    station.is_absent = True
    async with worker_of(skipping, station, queue):
        operation = await begin(skipping, station, queue, Policy(node_poll=timedelta(hours=12)))
        assert (await ends_red(operation)).type == Reason.NODE_NEVER_CAME
    first, last = station.rows[0], station.rows[-1]
    assert last.run_id != first.run_id, "it did continue as new"
    assert {row.until for row in station.rows[:-1]} == {first.at + timedelta(days=7)}
    assert last.at >= first.at + timedelta(days=7)
    assert len(station.dispatches) <= 7 * 2 + 1, "one look in 12 hours, and none after the end of the wait"


async def test_node_that_is_lost_with_work_on_it_ends_after_a_day(skipping: Client) -> None:
    station, queue = Station(), f"test-{uuid.uuid4()}"
    station.send_result(NodeUnreachable(accepted=True))
    for _ in range(40):
        station.send_result(NodeUnreachable())
    async with worker_of(skipping, station, queue):
        policy = Policy(node_poll=timedelta(hours=2), deadline=timedelta(days=30))
        operation = await begin(skipping, station, queue, policy)
        assert (await ends_red(operation)).type == Reason.LOST_NODE
    first, last = station.rows[0], station.rows[-1]
    waiting = [row for row in station.rows if row.state is State.WAITING]
    assert last.run_id != first.run_id, "it did continue as new"
    assert {row.until for row in waiting} == {waiting[0].at + timedelta(hours=24)}
    assert last.at >= waiting[0].at + timedelta(hours=24)
    assert station.commands.qsize() <= 12 + 2, "one look in two hours, and none after the end of the wait"
    assert last.dispatched_at == first.dispatched_at


async def test_undeliverable_cancel_survives_continue_as_new_and_ends_after_a_day(skipping: Client) -> None:
    station, queue = Station(), f"test-{uuid.uuid4()}"
    for _ in range(40):
        station.answer_cancel(CancelResult(unreachable=True))
    async with worker_of(skipping, station, queue):
        operation = await begin(skipping, station, queue, Policy(node_poll=timedelta(hours=2)))
        await operation.begin_on_node()
        request = CancelRequest(op_id=operation.op_id, by="ada")
        await skipping.get_workflow_handle(operation.handle.id).signal(names.SIGNAL_CANCEL, request)
        station.send_result(NodeUnreachable())
        assert (await ends_red(operation)).type == Reason.LOST_NODE
    last, cancelling = station.rows[-1], [row for row in station.rows if row.state is State.CANCELLING]
    assert last.run_id != cancelling[0].run_id, "it did continue as new"
    assert {row.until for row in cancelling} == {cancelling[0].at + timedelta(hours=24)}
    assert last.at >= cancelling[0].at + timedelta(hours=24)
    assert station.cancels.qsize() <= 12 + 1, "one try in two hours, and none after the end"
    assert last.cancelled_by == "ada"

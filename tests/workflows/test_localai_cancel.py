"""Cancel of an operation on a LocalAI worker, which cannot be interrupted; its follower sends the command."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowFailureError

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import CancelResult, NodeUnreachable, RowEnded
from nodesmith.contracts.temporal.operations import CancelRequest, OperationInput, Policy, RowEnd
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import Reason, State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.workflows.backend_operation import BackendOperation
from tests.deadlines import HANGS_S
from tests.fakes.operation_activities import QUICK, Operation, Station, a_request, worker_of


async def start(client: Client, station: Station, queue: str, policy: Policy = QUICK) -> Operation:
    request = a_request(queue).model_copy(update={"protocol": Protocol.LOCALAI})
    run_id = await TemporalRuns(client, queue=queue).start(OperationInput(request=request, policy=policy), intent="i")
    station.answer_to_cancels = CancelResult(not_interruptible=True)
    workflow_id = names.operation_workflow_id(request.node_id, "echo")
    handle = client.get_workflow_handle_for(BackendOperation.run, workflow_id, run_id=run_id)
    return Operation(station, handle, request.op_id)


async def ask_cancel(operation: Operation, **how: object) -> None:
    request = CancelRequest.model_validate({"op_id": operation.op_id, "by": "ada", **how})
    await operation.handle.signal(names.SIGNAL_CANCEL, request)


async def test_cancel_of_an_absent_worker_waits_between_its_tries(client: Client, queue: str) -> None:
    """Each answer that is no end is followed by a timer or by the node's return: the run does not spin."""
    station = Station()
    async with worker_of(client, station, queue):
        operation = await start(client, station, queue)
        await operation.begin_on_node()
        await ask_cancel(operation)
        await station.reached(State.CANCELLING)
        for _ in range(100):
            station.send_result(NodeUnreachable(accepted=True))
        for _ in range(50):  # each is answered after what the run had to do before
            await operation.status()
        assert station.commands.qsize() <= 2
        await ask_cancel(operation, force=True)
        assert (await operation.result()).state is State.CANCELLED


async def test_cancel_between_two_attempts_sends_nothing_more(client: Client, queue: str) -> None:
    station, patient = Station(), QUICK.model_copy(update={"back_off_first": timedelta(minutes=5)})
    patient = patient.model_copy(update={"back_off_cap": timedelta(minutes=5)})
    async with worker_of(client, station, queue):
        operation = await start(client, station, queue, patient)
        await station.commands.get()
        station.sent = 1
        station.send_result(operation.failed(Reason.NODE_ERROR))
        await station.seen(lambda seen: bool(seen.rows) and seen.rows[-1].reason is Reason.BACK_OFF)
        await ask_cancel(operation)
        assert (await operation.result()).state is State.CANCELLED
    assert station.commands.empty()


async def test_cancel_closes_with_the_row_end_that_its_follower_found(client: Client, queue: str) -> None:
    station = Station()
    async with worker_of(client, station, queue):
        operation = await start(client, station, queue)
        await operation.begin_on_node()
        await ask_cancel(operation)
        await station.reached(State.CANCELLING)
        end = RowEnd(state=State.FAILED, reason=Reason.ENDED_OUTSIDE)
        station.row_end = end
        station.send_result(RowEnded(end=end))
        with pytest.raises(WorkflowFailureError):
            await operation.result()
    assert station.states[-1] is State.CANCELLING, "the run wrote no end of its own"


async def test_cancel_by_a_person_replaces_one_that_may_be_dropped(client: Client, queue: str) -> None:
    """Both signals come in one workflow task: a newer request that would replace this one, and a person's cancel."""
    station = Station()
    async with worker_of(client, station, queue):
        operation = await start(client, station, queue)
        await station.commands.get()
    station.sent = 1
    await ask_cancel(operation, only_undispatched=True, why=Reason.SUPERSEDED)
    await ask_cancel(operation)
    async with worker_of(client, station, queue):
        assert (await asyncio.wait_for(station.cancels.get(), HANGS_S)).op_id == operation.op_id
        await ask_cancel(operation, force=True)
        assert (await operation.result()).state is State.CANCELLED

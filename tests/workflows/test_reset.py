"""Reset in the Temporal Web UI: an ended operation stays ended, an open one continues."""

import uuid

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.contracts.temporal.dispatch import Ended
from nodesmith.contracts.temporal.operations import OperationResult
from nodesmith.domain.operation import Reason, State
from nodesmith.workflows.backend_operation import BackendOperation
from tests.fakes.operation_activities import Operation
from tests.workflows.conftest import Begin


async def reset(client: Client, operation: Operation) -> Operation:
    """To its first workflow task, as the button of the Web UI does it."""
    history = await operation.handle.fetch_history()
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    first = next(event.event_id for event in history.events if event.event_type == completed)
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=operation.handle.id, run_id=operation.handle.run_id or ""),
            reason="in the Web UI",
            workflow_task_finish_event_id=first,
            request_id=str(uuid.uuid4()),
        )
    )
    handle = client.get_workflow_handle_for(BackendOperation.run, operation.handle.id, run_id=answer.run_id)
    return Operation(operation.station, handle, operation.op_id)


async def test_reset_of_a_succeeded_operation_closes_as_its_row_and_names_retry(client: Client, begin: Begin) -> None:
    done = Ended(outcome=Outcome(op_id="op", result=Result.SUCCEEDED, changed=True))
    operation = await begin(at_once=done)
    await operation.result()
    rows = list(operation.station.rows)
    again = await (await reset(client, operation)).result()
    assert again.state is State.SUCCEEDED
    assert f"nodesmith ops retry {operation.op_id}" in again.detail
    assert operation.station.rows == rows, "nothing is written"
    assert operation.station.commands.empty()


async def test_reset_of_a_failed_operation_runs_nothing_again(client: Client, begin: Begin) -> None:
    failed = Outcome(op_id="op", result=Result.FAILED, reason=Reason.NO_DISK, error="disk full")
    operation = await begin(at_once=Ended(outcome=failed))
    with pytest.raises(WorkflowFailureError):
        await operation.result()
    with pytest.raises(WorkflowFailureError) as raised:
        await (await reset(client, operation)).result()
    assert isinstance(raised.value.cause, ApplicationError)
    assert raised.value.cause.type == Reason.NO_DISK
    assert "ops retry" in str(raised.value.cause)
    assert operation.station.commands.empty()


async def test_reset_of_an_open_operation_continues_and_reports_it(client: Client, begin: Begin) -> None:
    operation = await begin()
    await operation.station.commands.get()
    after: Operation = await reset(client, operation)
    await operation.station.commands.get()
    operation.station.send_result(operation.succeeded())
    operation.station.send_result(operation.succeeded())
    result: OperationResult = await after.result()
    assert result.state is State.SUCCEEDED
    said = [row.detail for row in operation.station.rows if row.run_id == after.handle.run_id]
    assert said[0].startswith("reset in the Temporal Web UI")

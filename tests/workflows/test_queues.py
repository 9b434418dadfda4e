"""Queue, timeouts and priority of each activity of an operation, read from its history."""

from datetime import timedelta
from typing import Any

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import CancelResult
from nodesmith.contracts.temporal.operations import CancelRequest, Policy
from nodesmith.domain.operation import State
from tests.fakes.operation_activities import Operation
from tests.workflows.conftest import Begin


async def scheduled(operation: Operation, activity: str) -> Any:
    """The first command of that activity in the history."""
    history = await operation.handle.fetch_history()
    found = (event.activity_task_scheduled_event_attributes for event in history.events)
    return next(each for each in found if each.activity_type.name == activity)


async def test_cancel_has_the_control_queue_and_the_highest_priority(begin: Begin, queue: str) -> None:
    """Behind installs it would wait for a slot: the cancel uses the queue that has only short activities."""
    operation = await begin()
    await operation.begin_on_node()
    request = CancelRequest(op_id=operation.op_id, by="ada")
    await operation.handle.signal(names.SIGNAL_CANCEL, request)
    await operation.station.cancels.get()  # as a local activity, which gives up soon
    await operation.station.cancels.get()
    operation.station.answer_cancel(CancelResult(stopped=True))
    assert (await operation.result()).state is State.CANCELLED
    cancel, install = await scheduled(operation, "cancel_on_node"), await scheduled(operation, "run_on_node")
    assert (cancel.task_queue.name, install.task_queue.name) == (queue, f"{queue}-node")
    assert cancel.priority.priority_key == 1


async def test_install_has_the_default_limits_on_its_node(begin: Begin) -> None:
    """15 minutes for the request and one more to give the slot back; one attempt: the workflow owns the retries."""
    operation = await begin(policy=Policy())
    await operation.begin_on_node()
    operation.station.send_result(operation.succeeded())
    await operation.result()
    install = await scheduled(operation, "run_on_node")
    assert install.start_to_close_timeout.ToTimedelta() == timedelta(minutes=16)
    assert install.heartbeat_timeout.ToTimedelta() == timedelta(seconds=20)
    assert install.retry_policy.maximum_attempts == 1

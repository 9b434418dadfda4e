"""Every timeout and retry policy of the workflows, by name."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityCancellationType

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import FleetWatch, Policy

ONCE = RetryPolicy(maximum_attempts=1)
FOR_EVER = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))

RECORD_AT_ONCE: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=1),
    "retry_policy": ONCE,
}
"""A local activity: cheap, and it delays a cancel by a second at most."""
RECORD_THE_END: dict[str, Any] = {**RECORD_AT_ONCE, "schedule_to_close_timeout": timedelta(seconds=5)}
"""for the last write, when no cancel can wait: on a busy worker still cheaper than a normal activity"""

DISPATCH: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=3),
    "retry_policy": ONCE,
}
"""A local activity: short work on the node ends within it, and it delays a cancel by 3 s at most."""

CANCEL_AT_ONCE: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=1.5),
    "retry_policy": ONCE,
}
"""A local activity: most nodes answer within milliseconds, and no normal activity is needed."""

REQUEST_SLOT_AGAIN = timedelta(minutes=10)
"""a terminated batch grants no slots; the repeated request detects that, and the operation starts without one"""
REATTACH_PAUSE = timedelta(seconds=1)
BUSY_PAUSE = timedelta(seconds=5)
STORE_PAUSE = timedelta(seconds=2)
STORE_PAUSE_CAP = timedelta(seconds=30)
"""back-off between permit requests while PostgreSQL is down: first pause, longest pause"""
ORDER_WITHIN = timedelta(seconds=30)
"""a run without a signed order after this time was not admitted by an API"""
ORDER_PAUSE = timedelta(seconds=5)
SHORTEST_PAUSE = timedelta(seconds=1)
"""before a retry: the timer makes the decision durable before the command is sent"""

ADMIT_AT_ONCE = 50
MEMBERS_AT_ONCE = 1000
"""members in one payload: each may have a reason of 500 characters, and Temporal limits the size to 2 MB"""
BATCH_STEP: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=2),
    "heartbeat_timeout": timedelta(seconds=20),
    "retry_policy": FOR_EVER,
}
WATCH_MEMBERS: dict[str, Any] = {
    "start_to_close_timeout": timedelta(hours=1),
    "heartbeat_timeout": timedelta(seconds=20),
    "retry_policy": FOR_EVER,
}

GRACE = timedelta(minutes=1)
"""run_on_node returns by itself after the request timeout; this only catches a hang"""


def run_on_node(policy: Policy) -> dict[str, Any]:
    """Options with one attempt: the workflow retries itself, so that it notices the death of a worker."""
    return {
        "task_queue": names.node_queue(workflow.info().task_queue),
        "start_to_close_timeout": policy.request_timeout + GRACE,
        "heartbeat_timeout": policy.heartbeat_timeout,
        "retry_policy": ONCE,
        "cancellation_type": ActivityCancellationType.TRY_CANCEL,
    }


def record_until_done() -> dict[str, Any]:
    return {
        "task_queue": names.control_queue(workflow.info().task_queue),
        "start_to_close_timeout": timedelta(seconds=10),
        "retry_policy": FOR_EVER,
    }


def watch_operation() -> dict[str, Any]:
    return {"task_queue": names.control_queue(workflow.info().task_queue), **WATCH_MEMBERS}


def cancel_on_node() -> dict[str, Any]:
    return {
        "task_queue": names.control_queue(workflow.info().task_queue),
        "start_to_close_timeout": timedelta(seconds=15),
        "retry_policy": FOR_EVER,
        "priority": Priority(priority_key=1),
    }


def watch_fleet(watch: FleetWatch) -> dict[str, Any]:
    return {
        "start_to_close_timeout": watch.rest + GRACE,
        "heartbeat_timeout": watch.heartbeat_timeout,
        "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=15)),
    }

"""Every timeout and retry policy of the workflows, by name."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityCancellationType

from contracts import temporal as names
from contracts.temporal import FleetWatch, Policy

ONCE = RetryPolicy(maximum_attempts=1)
FOR_EVER = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))

RECORD_AT_ONCE: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=1),
    "retry_policy": ONCE,
}
"""A local activity: cheap, and never in the way of a cancel for more than a second."""
RECORD_THE_END: dict[str, Any] = {**RECORD_AT_ONCE, "schedule_to_close_timeout": timedelta(seconds=5)}
"""the same, when there is nothing left to be in the way of: a busy worker is no reason for a dearer write"""

DISPATCH: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=3),
    "retry_policy": ONCE,
}
"""A local activity: what is quick on the node ends where the run stands, and no cancel waits longer than that."""

CANCEL_AT_ONCE: dict[str, Any] = {
    "schedule_to_close_timeout": timedelta(seconds=1.5),
    "retry_policy": ONCE,
}
"""A local activity too: most nodes answer within milliseconds, and the run can end where it stands."""


REQUEST_SLOT_AGAIN = timedelta(minutes=10)
"""a batch that was terminated gives no slots: then none is needed"""
REATTACH_PAUSE = timedelta(seconds=1)
BUSY_PAUSE = timedelta(seconds=5)
STORE_PAUSE = timedelta(seconds=2)
STORE_PAUSE_CAP = timedelta(seconds=30)
"""PostgreSQL gave no permit: try again, later each time"""
SHORTEST_PAUSE = timedelta(seconds=1)
"""after a decision to try again: the timer makes that decision durable before the command goes out"""

ADMIT_AT_ONCE = 50
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
"""run_on_node gives its slot back by itself after the request timeout; this only catches a hang"""


def run_on_node(policy: Policy) -> dict[str, Any]:
    """One attempt: the workflow owns the retries, so that a worker's death is visible to it."""
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

"""Workflows and activities of each task queue, for the worker and for the replay tests."""

from collections.abc import Callable, Sequence
from typing import Any

from nodesmith.activities.batches import BatchActivities
from nodesmith.activities.fleet_monitor import FleetActivities
from nodesmith.activities.model_scheduler import ModelActivities
from nodesmith.activities.node import NodeActivities
from nodesmith.activities.records import RecordActivities
from nodesmith.activities.watch_operation import WatchActivities
from nodesmith.workflows.backend_operation import BackendOperation
from nodesmith.workflows.batch import Batch
from nodesmith.workflows.fleet_monitor import FleetMonitor
from nodesmith.workflows.model_scheduler import ModelScheduler

WORKFLOWS: Sequence[type] = (BackendOperation, Batch, FleetMonitor, ModelScheduler)
"""registered on both queues, because a run stays on the queue where it was started"""


def control_activities(
    node: NodeActivities,
    records: RecordActivities,
    fleet: FleetActivities,
    batches: BatchActivities,
    *,
    watches: WatchActivities,
    models: ModelActivities,
) -> Sequence[Callable[..., Any]]:
    """Activities of the control queue: short ones, and the watches over the fleet, the models and batch members."""
    batch_activities: list[Callable[..., Any]] = [
        batches.open_batch,
        batches.admit_members,
        batches.watch_members,
        batches.cancel_members,
        batches.close_batch,
    ]
    others: list[Callable[..., Any]] = [
        records.record,
        records.report_not_admitted,
        fleet.watch_fleet,
        watches.watch_operation,
        models.watch_models,
    ]
    return [node.cancel_on_node, *others, *batch_activities]


def node_activities(node: NodeActivities, records: RecordActivities) -> Sequence[Callable[..., Any]]:
    """Activities of the node queue: `run_on_node`, which holds a slot while a node works, and the local activities."""
    return [node.dispatch, node.run_on_node, node.cancel_on_node, records.record]

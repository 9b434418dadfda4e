"""What a worker runs: one list for the worker and for the replay tests."""

from collections.abc import Callable, Sequence
from typing import Any

from activities.batches import BatchActivities
from activities.fleet import FleetActivities
from activities.node import NodeActivities
from activities.records import RecordActivities
from workflows.backend_operation import BackendOperation
from workflows.batch import Batch
from workflows.fleet_monitor import FleetMonitor

WORKFLOWS: Sequence[type] = (BackendOperation, Batch, FleetMonitor)
"""on both queues: a run stays on the queue on which it was started"""


def control_activities(
    node: NodeActivities, records: RecordActivities, fleet: FleetActivities, batches: BatchActivities
) -> Sequence[Callable[..., Any]]:
    """Short ones, and those that watch: over the fleet, and over the members of a batch."""
    of_batches: list[Callable[..., Any]] = [
        batches.open_batch,
        batches.admit_members,
        batches.watch_members,
        batches.cancel_members,
        batches.close_batch,
    ]
    return [node.cancel_on_node, records.record, fleet.watch_fleet, *of_batches]


def node_activities(node: NodeActivities, records: RecordActivities) -> Sequence[Callable[..., Any]]:
    """The one that holds a slot for as long as a node works, and those that operations call as local ones."""
    return [node.dispatch, node.run_on_node, node.cancel_on_node, records.record]

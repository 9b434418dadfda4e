"""What a worker runs: one list for the worker and for the replay tests."""

from collections.abc import Callable, Sequence
from typing import Any

from activities.fleet import FleetActivities
from activities.node import NodeActivities
from activities.records import RecordActivities
from workflows.backend_operation import BackendOperation
from workflows.fleet_monitor import FleetMonitor

WORKFLOWS: Sequence[type] = (BackendOperation, FleetMonitor)


def control_activities(
    node: NodeActivities, records: RecordActivities, fleet: FleetActivities
) -> Sequence[Callable[..., Any]]:
    """Short ones, and the one watch over the fleet."""
    return [node.cancel_on_node, records.record, fleet.watch_fleet]


def node_activities(node: NodeActivities) -> Sequence[Callable[..., Any]]:
    """Those that hold a slot for as long as a node works."""
    return [node.run_on_node]

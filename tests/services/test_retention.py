"""Retention: the fleet monitor purges old operations."""

from datetime import timedelta
from typing import Any

from temporalio.testing import ActivityEnvironment

from nodesmith.activities.fleet_monitor import FleetActivities
from nodesmith.contracts.temporal.operations import FleetWatch
from nodesmith.domain.operation import State
from nodesmith.services.operations.retention import Retention
from nodesmith.store.access.audit import AuditTrail
from nodesmith.store.database import Database
from nodesmith.store.operations.history import History
from nodesmith.store.operations.operations import OperationTable
from tests.services.conftest import now
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition


class Quiet:
    """The other duties of the fleet monitor, with nothing to do."""

    async def once(self) -> int:
        return 0

    async def sweep(self) -> None:
        return

    async def write(self, run_id: str) -> None:
        return


async def test_fleet_monitor_purges_old_operations(database: Database, operations: OperationTable) -> None:
    """H33: without any request."""
    old, young, long_ago = a_request(), a_request(), now() - timedelta(days=91)
    await operations.record(
        transition(old, State.SUCCEEDED, ended_at=long_ago),
        transition(young, State.SUCCEEDED, ended_at=max(now(), NOON)),
    )
    rest: Any = Quiet()
    fleet = FleetActivities(rest, rest, rest, Retention(History(database), AuditTrail(database), now), rest)
    brief = FleetWatch(tick=timedelta(milliseconds=1), rest=timedelta(milliseconds=1))
    await ActivityEnvironment().run(fleet.watch_fleet, brief)
    assert await operations.find(old.op_id) is None
    assert await operations.find(young.op_id) is not None

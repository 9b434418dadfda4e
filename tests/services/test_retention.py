"""What has ended goes by itself after a while: somebody has to look, and that is the watch over the fleet."""

from datetime import timedelta
from typing import Any

from temporalio.testing import ActivityEnvironment

from activities.fleet import FleetActivities
from contracts.temporal import FleetWatch
from domain.operation import State
from services.retention import Retention
from store.audit import AuditTrail
from store.database import Database
from store.history import History
from store.operations import OperationTable
from tests.services.conftest import now
from tests.store.clock import NOON
from tests.store.transitions import a_request, transition


class Quiet:
    """The other duties of the watch, with nothing to do."""

    async def once(self) -> int:
        return 0

    async def sweep(self) -> None:
        return

    async def write(self, run_id: str) -> None:
        return


async def test_the_watch_over_the_fleet_purges_what_is_old(database: Database, operations: OperationTable) -> None:
    """H33: nobody has to call for it."""
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

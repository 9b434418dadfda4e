"""The watch over the fleet repairs, also when another of its duties cannot be done."""

from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.fleet import FleetActivities
from contracts.messages import CancelAnswer, CancelReply
from contracts.temporal import FleetWatch
from domain.operation import Reason, State
from runtime.temporal import TemporalRuns
from services.admission import Admission
from services.repair import Repair
from store.nodes import Nodes
from store.operations import OperationTable
from tests.services.conftest import Join, now
from tests.services.links import PlayedLink
from tests.services.test_repair import terminated

ONCE = FleetWatch(tick=timedelta(milliseconds=1), rest=timedelta(milliseconds=1))


class Quiet:
    async def sweep(self) -> int:
        return 0


async def test_the_watch_over_the_fleet_repairs_a_run_that_was_terminated(
    admission: Admission,
    client: Client,
    join: Join,
    nodes: Nodes,
    operations: OperationTable,
    runs: TemporalRuns,
) -> None:
    """S13: nobody has to call for it."""
    op_id, link, rest = await terminated(admission, client, join), PlayedLink(), Quiet()
    link.cancel_reply = CancelReply(op_id=op_id, answer=CancelAnswer.STOPPED)
    duties: Any = rest
    fleet = FleetActivities(Repair(nodes, operations, runs, link, now), duties, duties)
    await ActivityEnvironment().run(fleet.watch_fleet, ONCE)
    row = await operations.find(op_id)
    assert row is not None
    assert (row.state, row.reason) == (State.FAILED, Reason.ENDED_OUTSIDE)
    assert [command.op_id for command in link.cancels] == [op_id]

"""What a run may write of its operation, through the activity that writes it."""

from activities.records import RecordActivities
from contracts.temporal import Recorded, Transitions
from domain.operation import State
from store.database import Database
from store.operations import OperationTable
from store.permits import PermitTable
from tests.services.conftest import now
from tests.store.transitions import a_request, transition


async def test_activity_refuses_an_end_without_the_nodes_word_after_a_command(
    database: Database, operations: OperationTable
) -> None:
    """Promise 3: what may be on its node is not `cancelled` before the node says so."""
    request, permits = a_request(), PermitTable(database)
    await operations.insert_queued(transition(request, State.QUEUED, seq=0))
    await permits.permit(request.op_id, 1, token="a", on_node=False)
    cancelled = Transitions(rows=(transition(request, State.CANCELLED, ended_at=now()),), only_unsent=True)
    record = RecordActivities(operations).record
    assert await record(cancelled) == Recorded(written=False)
    await permits.withdraw(request.op_id, 1, token="a")
    assert await record(cancelled) == Recorded(written=True)

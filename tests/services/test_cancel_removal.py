"""A dispatched removal cannot be cancelled, whether or not its node is visible."""

import pytest

from nodesmith.contracts.temporal.operations import CancelRequest
from nodesmith.domain.errors import NotCancellable
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import State
from nodesmith.runtime.temporal import TemporalRuns
from nodesmith.services.operations.cancellation import Cancellation
from nodesmith.store.nodes.nodes import Nodes
from nodesmith.store.operations.operations import OperationTable
from tests.services.conftest import now
from tests.store.transitions import a_request, transition


class RecordedRuns(TemporalRuns):
    """Records every cancel as accepted by an open run."""

    def __init__(self) -> None:
        self.cancelled: list[CancelRequest] = []

    async def cancel(self, workflow_id: str, request: CancelRequest) -> bool:
        self.cancelled.append(request)
        return True


@pytest.fixture
def recorded() -> RecordedRuns:
    return RecordedRuns()


@pytest.fixture
def cancellation(nodes: Nodes, operations: OperationTable, recorded: RecordedRuns) -> Cancellation:
    return Cancellation(nodes, operations, recorded)


async def removal_in(operations: OperationTable, state: State) -> str:
    request = a_request()
    removing = request.model_copy(update={"wanted": request.wanted.model_copy(update={"kind": Kind.REMOVE})})
    await operations.record(transition(removing, state, dispatched_at=now()))
    return request.op_id


@pytest.mark.parametrize("state", [State.RUNNING, State.STILL_INSTALLING])
async def test_removal_on_its_node_cannot_be_cancelled_unless_by_force(
    cancellation: Cancellation, operations: OperationTable, recorded: RecordedRuns, state: State
) -> None:
    """S60: also when the node is not visible."""
    op_id = await removal_in(operations, state)
    with pytest.raises(NotCancellable, match="is removing echo from"):
        await cancellation.cancel(op_id, actor="ada")
    assert not recorded.cancelled
    await cancellation.cancel(op_id, actor="ada", force=True)
    assert [each.force for each in recorded.cancelled] == [True]


@pytest.mark.parametrize("state", [State.QUEUED, State.WAITING, State.CANCELLING])
async def test_removal_that_is_not_on_its_node_can_be_cancelled(
    cancellation: Cancellation, operations: OperationTable, recorded: RecordedRuns, state: State
) -> None:
    op_id = await removal_in(operations, state)
    await cancellation.cancel(op_id, actor="ada")
    assert [each.op_id for each in recorded.cancelled] == [op_id]

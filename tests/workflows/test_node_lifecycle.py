"""What a drain or a removal of the node does to an operation."""

import pytest

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.dispatch import NodeUnreachable
from nodesmith.contracts.temporal.operations import CancelRequest
from nodesmith.domain.operation import Reason, State
from tests.workflows.conftest import Begin


async def test_what_waits_for_a_drained_node_ends_as_drained(begin: Begin) -> None:
    """S26."""
    operation = await begin(at_once=NodeUnreachable())
    await operation.station.reached(State.WAITING)
    request = CancelRequest(op_id=operation.op_id, by="ada", why=Reason.NODE_DRAINED, detail="new disks")
    await operation.handle.signal(names.SIGNAL_CANCEL, request)
    assert (await operation.result()).state is State.CANCELLED
    last = operation.station.rows[-1]
    assert (last.reason, last.detail, last.cancelled_by) == (Reason.NODE_DRAINED, "new disks", "ada")


@pytest.mark.parametrize(
    ("why", "reported"), [(Reason.NODE_REMOVED, Reason.NODE_REMOVED), (Reason.REQUESTED, Reason.FORCED)]
)
async def test_operation_of_removed_node_ends_without_the_node_and_names_the_reason(
    begin: Begin, why: Reason, reported: Reason
) -> None:
    operation = await begin()
    await operation.begin_on_node()
    request = CancelRequest(op_id=operation.op_id, by="ada", why=why, force=True)
    await operation.handle.signal(names.SIGNAL_CANCEL, request)
    assert (await operation.result()).state is State.CANCELLED
    assert operation.station.rows[-1].reason is reported
    assert operation.station.cancels.empty()

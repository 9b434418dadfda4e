"""The slot of an operation in the window of its batch."""

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from contracts.batches import SIGNAL_READY, MemberReady, batch_workflow_id, member_op_id
    from contracts.temporal import OperationInput, OperationRequest, RunState


class BatchSlot:
    """Requests and returns a slot; the batch decides when there is one."""

    def __init__(self, start: OperationInput, state: RunState) -> None:
        self._op_id = start.request.op_id
        self._batch_id = _batch_of(start.request)
        self._now = state

    @property
    def is_needed(self) -> bool:
        """False for an operation outside any batch window: it begins when it can."""
        return self._batch_id is not None

    async def request(self) -> bool:
        """False when the batch does not run any more: then no slot is needed."""
        return await self._signal_batch(is_ready=True)

    async def give_back(self) -> None:
        if self._now.has_slot:
            self._now.has_slot = False
            await self._signal_batch(is_ready=False)

    async def _signal_batch(self, *, is_ready: bool) -> bool:
        ready = MemberReady(op_id=self._op_id, workflow_id=workflow.info().workflow_id, is_ready=is_ready)
        batch = workflow.get_external_workflow_handle(batch_workflow_id(self._batch_id or ""))
        try:
            await batch.signal(SIGNAL_READY, ready)
        except FailureError:
            return False
        return True


def _batch_of(request: OperationRequest) -> str | None:
    """None also for a retry of a member, which a person asked for: it is outside the window."""
    is_member = request.batch_id and request.op_id == member_op_id(request.batch_id, request.node_id)
    return request.batch_id if is_member else None

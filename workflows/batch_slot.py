"""The slot of one operation in the sliding window of its batch."""

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from nodesmith.contracts.temporal.batches import SIGNAL_READY, MemberReady, batch_workflow_id, member_op_id
    from nodesmith.contracts.temporal.operations import OperationInput, OperationRequest, RunState


class BatchSlot:
    """Requests and releases the slot by signals; the batch workflow grants it."""

    def __init__(self, start: OperationInput, state: RunState) -> None:
        self._op_id = start.request.op_id
        self._batch_id = _batch_of(start.request)
        self._run = state

    @property
    def is_needed(self) -> bool:
        """False for an operation outside a batch window: it starts without a slot."""
        return self._batch_id is not None

    async def request(self) -> bool:
        """Ask the batch for a slot; False when the batch has ended, so that no slot is needed."""
        return await self._signal_batch(is_ready=True)

    async def release(self) -> None:
        if self._run.has_slot:
            self._run.has_slot = False
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
    """Return the batch of a member. A user's retry of a member is outside the window: None."""
    is_member = request.batch_id and request.op_id == member_op_id(request.batch_id, request.node_id)
    return request.batch_id if is_member else None

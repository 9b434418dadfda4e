"""The place of an operation in the window of its batch, as its run knows it."""

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from contracts.batches import SIGNAL_READY, MemberReady, batch_workflow_id, member_op_id
    from contracts.temporal import OperationInput, OperationRequest


class Turns:
    """Asks the batch for a place; when there is one is decided by the batch."""

    def __init__(self, start: OperationInput) -> None:
        self._op_id = start.request.op_id
        self._batch_id = _batch_of(start.request) if start.takes_turns else None
        self.is_ours = False

    @property
    def are_taken(self) -> bool:
        """False for what stands in no window: it begins when it can."""
        return self._batch_id is not None

    async def ask(self) -> bool:
        """False when there is no such batch any more: then nobody gives turns."""
        return await self._tell_batch(is_ready=True)

    async def give_back(self) -> None:
        if self.is_ours:
            self.is_ours = False
            await self._tell_batch(is_ready=False)

    async def _tell_batch(self, *, is_ready: bool) -> bool:
        ready = MemberReady(op_id=self._op_id, workflow_id=workflow.info().workflow_id, is_ready=is_ready)
        batch = workflow.get_external_workflow_handle(batch_workflow_id(self._batch_id or ""))
        try:
            await batch.signal(SIGNAL_READY, ready)
        except FailureError:
            return False
        return True


def _batch_of(request: OperationRequest) -> str | None:
    """None also for a retry of a member, which a person asked for: it stands in no window."""
    is_member = request.batch_id and request.op_id == member_op_id(request.batch_id, request.node_id)
    return request.batch_id if is_member else None

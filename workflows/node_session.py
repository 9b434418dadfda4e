"""The node's side of an operation, as its run sees it: dispatch, follow, cancel."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts import dispatch as names
    from contracts.dispatch import (
        CancelOrder,
        CancelResult,
        Dispatched,
        DispatchResult,
        DispatchTask,
        Silent,
    )
    from contracts.messages import CancelMode
    from contracts.temporal import OperationInput, RunState
    from domain.node import Protocol


class NodeSession:
    """Sends and follows; what follows from an answer is decided by the operation."""

    def __init__(self, start: OperationInput, state: RunState) -> None:
        self._request = start.request
        self._policy = start.policy
        self._now = state
        self._following: workflow.ActivityHandle[Dispatched] | None = None

    @property
    def needs_dispatch(self) -> bool:
        """The decision in force has not been sent. A LocalAI worker gets one long request, sent by the follower."""
        is_ours = self._request.protocol is Protocol.NODESMITH
        return is_ours and not self.is_attached and self._now.sent_decision < self._now.decision

    @property
    def is_attached(self) -> bool:
        return self._following is not None

    @property
    def has_answered(self) -> bool:
        return self._following is not None and self._following.done()

    async def dispatch(self) -> DispatchResult:
        """Send the command where the run stands: what is quick on the node has ended when this returns."""
        try:
            sent: Dispatched = await workflow.execute_local_activity(
                names.DISPATCH, self._task(), result_type=Dispatched, summary=self._title(), **options.DISPATCH
            )
        except FailureError:  # a local activity fails with its cause, bare
            return Silent()
        return sent.result

    def follow(self) -> None:
        """Attach an activity to the node's work; `has_answered` when it has something to read."""
        self._following = workflow.start_activity(
            names.RUN_ON_NODE,
            self._task(),
            result_type=Dispatched,
            summary=self._title(),
            **options.run_on_node(self._policy),
        )

    async def read(self) -> DispatchResult:
        """The follower's result; `Silent` if its worker died or stopped: the node goes on."""
        following, self._following = self._following, None
        if following is None:
            return Silent()
        try:
            return (await following).result
        except ActivityError:
            return Silent()

    def detach(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def cancel_at_once(self, op_id: str, mode: CancelMode) -> CancelResult | None:
        """Cancel that operation where the run stands: most nodes answer at once. None when this one does not."""
        try:
            result: CancelResult = await workflow.execute_local_activity(
                names.CANCEL_ON_NODE, self._order(op_id, mode), **self._cancelling(op_id), **options.CANCEL_AT_ONCE
            )
        except FailureError:
            return None
        return result

    async def cancel(self, op_id: str, mode: CancelMode) -> CancelResult:
        """The same beside the run, for as long as it takes."""
        result: CancelResult = await workflow.execute_activity(
            names.CANCEL_ON_NODE, self._order(op_id, mode), **self._cancelling(op_id), **options.cancel_on_node()
        )
        return result

    def _task(self) -> DispatchTask:
        now = self._now
        return DispatchTask(request=self._request, policy=self._policy, decision=now.decision, accepted=now.accepted)

    def _title(self) -> str:
        wanted = self._request.wanted
        return f"{wanted.kind} {wanted.backend} on {self._request.node_name}"

    def _cancelling(self, op_id: str) -> dict[str, Any]:
        return {"result_type": CancelResult, "summary": f"cancel {op_id} on {self._request.node_name}"}

    def _order(self, op_id: str, mode: CancelMode) -> CancelOrder:
        request = self._request
        return CancelOrder(
            node_id=request.node_id,
            node_name=request.node_name,
            protocol=request.protocol,
            op_id=op_id,
            family=request.wanted.family,
            mode=mode,
        )

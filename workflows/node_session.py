"""Activities of one operation on its node: dispatch, follow, cancel."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.nats.messages import CancelMode
    from nodesmith.contracts.temporal import dispatch as names
    from nodesmith.contracts.temporal.dispatch import (
        CancelOrder,
        CancelResult,
        Dispatched,
        DispatchResult,
        DispatchTask,
        Silent,
    )
    from nodesmith.contracts.temporal.operations import OperationInput, RunState
    from nodesmith.domain.node import Protocol


class NodeSession:
    """Starts the node activities and returns their results; the workflow decides what a result means."""

    def __init__(self, start: OperationInput, state: RunState) -> None:
        self._request = start.request
        self._policy = start.policy
        self._run = state
        self._follower: workflow.ActivityHandle[Dispatched] | None = None

    @property
    def needs_dispatch(self) -> bool:
        """The current decision has not been sent. Not for a LocalAI worker: the follower sends its one long request."""
        is_own_agent = self._request.protocol is Protocol.NODESMITH
        return is_own_agent and not self.is_attached and self._run.sent_decision < self._run.decision

    @property
    def is_attached(self) -> bool:
        return self._follower is not None

    @property
    def has_answered(self) -> bool:
        return self._follower is not None and self._follower.done()

    async def dispatch(self) -> DispatchResult:
        """Send the command in a local activity; the result holds the outcome if the node finishes quickly."""
        try:
            sent: Dispatched = await workflow.execute_local_activity(
                names.DISPATCH, self._task(), result_type=Dispatched, summary=self._title(), **options.DISPATCH
            )
        except FailureError:  # a local activity raises its cause, not an ActivityError
            return Silent()
        return sent.result

    def follow(self) -> None:
        """Start an activity that follows the node's work; `has_answered` is true once `read` has a result."""
        self._follower = workflow.start_activity(
            names.RUN_ON_NODE,
            self._task(),
            result_type=Dispatched,
            summary=self._title(),
            **options.run_on_node(self._policy),
        )

    async def read(self) -> DispatchResult:
        """Return the follower's result; `Silent` if its worker died or stopped, while the node keeps working."""
        follower, self._follower = self._follower, None
        if follower is None:
            return Silent()
        try:
            return (await follower).result
        except ActivityError:
            return Silent()

    def detach(self) -> None:
        if self._follower is not None:
            self._follower.cancel()

    async def cancel_at_once(self, op_id: str, mode: CancelMode) -> CancelResult | None:
        """Cancel that operation in a short local activity; None if the node does not answer at once."""
        try:
            result: CancelResult = await workflow.execute_local_activity(
                names.CANCEL_ON_NODE, self._order(op_id, mode), **self._cancel_options(op_id), **options.CANCEL_AT_ONCE
            )
        except FailureError:
            return None
        return result

    async def cancel(self, op_id: str, mode: CancelMode) -> CancelResult:
        """Cancel that operation in a normal activity, with retries until the node answers."""
        result: CancelResult = await workflow.execute_activity(
            names.CANCEL_ON_NODE, self._order(op_id, mode), **self._cancel_options(op_id), **options.cancel_on_node()
        )
        return result

    def _task(self) -> DispatchTask:
        run = self._run
        return DispatchTask(request=self._request, policy=self._policy, decision=run.decision, accepted=run.accepted)

    def _title(self) -> str:
        wanted = self._request.wanted
        return f"{wanted.kind} {wanted.backend} on {self._request.node_name}"

    def _cancel_options(self, op_id: str) -> dict[str, Any]:
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

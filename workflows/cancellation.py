"""Cancels one operation; it ends as cancelled only after the node has confirmed the stop."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.nats.messages import CancelMode, Outcome, Result
    from nodesmith.contracts.outcome_words import what_changed
    from nodesmith.contracts.temporal.dispatch import CancelResult, Ended, RowEnded
    from nodesmith.contracts.temporal.operations import CancelRequest, OperationInput, RunState
    from nodesmith.domain.operation import PERMANENT, Event, Reason, State, back_off
    from nodesmith.workflows.node_session import NodeSession
    from nodesmith.workflows.operation_record import OperationRecord


class OperationCancel:
    """Ends an unsent operation at once; otherwise cancels it on the node, with retries for up to `lost_after`."""

    def __init__(self, start: OperationInput, state: RunState, record: OperationRecord, node: NodeSession) -> None:
        self._op_id = start.request.op_id
        self._kind = start.request.wanted.kind
        self._policy = start.policy
        self._run = state
        self._record = record
        self._node = node

    def request(self, request: CancelRequest) -> None:
        """Store the first request; a forced one replaces it, and any replaces one that is `only_undispatched`."""
        if request.withdrawn:
            self._withdraw(request)
            return
        too_late, pending = request.only_undispatched and self._run.sent_decision > 0, self._run.cancel
        if not too_late and (pending is None or request.force or pending.only_undispatched):
            self._run.cancel = request

    def _withdraw(self, request: CancelRequest) -> None:
        pending = self._run.cancel
        if pending is not None and pending.only_undispatched and pending.detail == request.detail:
            self._run.cancel = None

    async def carry_out(self, request: CancelRequest) -> None:
        """Try the cancel once; the workflow repeats it while the operation is open."""
        if request.force:
            self._end(request)
        elif self._run.sent_decision == 0:
            await self._end_unsent(request)
        elif request.only_undispatched:
            self._run.cancel = None
        elif self._run.cancel_until is not None and workflow.now() >= self._run.cancel_until:
            detail = f"the cancel{_by(request)} never reached the node"
            self._record.move(Event.FAIL, reason=Reason.LOST_NODE, detail=detail)
        else:
            await self._cancel_at_node(request)

    async def cancel_on_node(self, op_id: str, mode: CancelMode) -> CancelResult:
        """Cancel in a short local activity; if the node does not answer in time, in a normal one with retries."""
        if (result := await self._node.cancel_at_once(op_id, mode)) is not None:
            return result
        self._record.write_behind()
        return await self._node.cancel(op_id, mode)

    async def _end_unsent(self, request: CancelRequest) -> None:
        """End at once if the row proves that no command was sent; while PostgreSQL is down, back off and retry."""
        event, reason = _end_of(request)
        ended = await self._record.end_unsent(event, reason=reason, detail=request.detail, by=request.by)
        if ended is False:
            self._run.sent_decision = self._run.decision
        elif ended is None and request.only_undispatched:
            self._run.cancel = None
        elif ended is None:
            self._run.store_failures += 1
            pause = back_off(self._run.store_failures, first=options.STORE_PAUSE, cap=options.STORE_PAUSE_CAP)
            await _wait(self._is_forced, pause)

    def _is_forced(self) -> bool:
        return (self._run.cancel is not None and self._run.cancel.force) or self._record.ended_by_row

    async def _cancel_at_node(self, request: CancelRequest) -> None:
        run = self._run
        run.cancel_until = run.cancel_until or workflow.now() + self._policy.lost_after
        if run.state is not State.CANCELLING:
            self._record.move(
                Event.ASK_CANCEL, reason=request.why, detail=request.detail, until=run.cancel_until, by=request.by
            )
        run.node_heard = False
        result = await self.cancel_on_node(self._op_id, request.mode)
        if result.outcome is not None:
            self._apply_outcome(result.outcome, request)
        elif result.stopped:
            self._end(request, f"node stopped after {result.stopped_after_s:.1f} s")
        else:
            self._record.write_behind()
            await self._wait_before_next_try(request, follow=result.not_interruptible)

    async def _wait_before_next_try(self, request: CancelRequest, *, follow: bool) -> None:
        """Wait until the node is reachable again, or until a LocalAI worker, which cannot be interrupted, finishes."""
        if follow and not self._node.is_attached:
            if self._run.sent_decision < self._run.decision:  # between two attempts nothing runs on the node
                self._end(request)
                return
            self._node.follow()
        await _wait(lambda: self._node.has_answered or self._is_woken(), self._until_next_try())
        if not self._node.has_answered:
            return
        match await self._node.read():
            case Ended(outcome=outcome):
                self._apply_outcome(outcome, request)
            case RowEnded(end=end):
                self._record.adopt(end)
            case _:
                await _wait(self._is_woken, self._until_next_try())

    def _is_woken(self) -> bool:
        return self._is_forced() or self._run.node_heard or self._run.row_doubted

    def _until_next_try(self) -> timedelta:
        left = self._run.cancel_until - workflow.now() if self._run.cancel_until else self._policy.node_poll
        return max(min(self._policy.node_poll, left), timedelta(0))

    def _apply_outcome(self, outcome: Outcome, request: CancelRequest) -> None:
        """Apply an outcome that the node reached before the cancel."""
        match outcome.result:
            case Result.SUCCEEDED:
                detail = f"{what_changed(outcome, self._kind)}; the cancel came too late"
                self._record.move(Event.SUCCEED, detail=detail, outcome=outcome)
            case Result.FAILED if (reason := outcome.reason or Reason.NODE_ERROR) in PERMANENT:
                self._record.move(Event.FAIL, reason=reason, detail=outcome.error, outcome=outcome)
            case Result.FAILED:  # the attempt failed and there is no next one, which is what a cancel asks for
                self._end(request, outcome.error)
            case _:
                self._end(request)

    def _end(self, request: CancelRequest, how: str = "") -> None:
        event, reason = _end_of(request)
        detail = "; ".join(part for part in (request.detail, how) if part)
        self._record.move(event, reason=reason, detail=detail, by=request.by)


def _end_of(request: CancelRequest) -> tuple[Event, Reason]:
    if request.why is Reason.DEADLINE:
        return Event.FAIL, Reason.DEADLINE
    forced = request.force and request.why is Reason.REQUESTED
    return Event.CANCEL, Reason.FORCED if forced else request.why


def _by(request: CancelRequest) -> str:
    return f" by {request.by}" if request.by else ""


async def _wait(is_woken: Callable[[], bool], pause: timedelta) -> None:
    try:
        await workflow.wait_condition(is_woken, timeout=pause)
    except TimeoutError:
        return

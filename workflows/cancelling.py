"""Cancel of one operation: the node's word comes before anybody says that it stopped."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts.dispatch import CancelResult, Ended, RowEnded
    from contracts.messages import CancelMode, Outcome, Result
    from contracts.outcome_words import what_changed
    from contracts.temporal import CancelRequest, OperationInput, RunState
    from domain.operation import PERMANENT, Event, Reason, State, back_off
    from workflows.ledger import Ledger
    from workflows.node_session import NodeSession


class Cancelling:
    """Ends at once what was never sent; tells the node of everything else, for as long as `lost_after` allows."""

    def __init__(self, start: OperationInput, state: RunState, ledger: Ledger, node: NodeSession) -> None:
        self._op_id = start.request.op_id
        self._kind = start.request.wanted.kind
        self._policy = start.policy
        self._now = state
        self._ledger = ledger
        self._node = node

    def request(self, request: CancelRequest) -> None:
        """The first request counts; a forced one replaces it, and any replaces one that may be dropped."""
        too_late, pending = request.only_undispatched and self._now.sent_decision > 0, self._now.cancel
        if not too_late and (pending is None or request.force or pending.only_undispatched):
            self._now.cancel = request

    async def carry_out(self, request: CancelRequest) -> None:
        """One try; the run repeats it while the operation is open."""
        if request.force:
            self._end(request)
        elif self._now.sent_decision == 0:
            await self._end_unsent(request)
        elif request.only_undispatched:
            self._now.cancel = None
        elif self._now.cancel_until is not None and workflow.now() >= self._now.cancel_until:
            detail = f"the cancel{_by(request)} never reached the node"
            self._ledger.move(Event.FAIL, reason=Reason.LOST_NODE, detail=detail)
        else:
            await self._tell_node(request)

    async def cancel_on_node(self, op_id: str, mode: CancelMode) -> CancelResult:
        """Where the run stands if the node answers quickly; otherwise beside it, for as long as it takes."""
        if (result := await self._node.cancel_at_once(op_id, mode)) is not None:
            return result
        self._ledger.write_behind()
        return await self._node.cancel(op_id, mode)

    async def _end_unsent(self, request: CancelRequest) -> None:
        """At once, if the row proves that nothing was sent. Without PostgreSQL nothing can be sent: wait for it."""
        event, reason = _end_of(request)
        ended = await self._ledger.end_unsent(event, reason=reason, detail=request.detail, by=request.by)
        if ended is False:
            self._now.sent_decision = self._now.decision
        elif ended is None and request.only_undispatched:
            self._now.cancel = None
        elif ended is None:
            self._now.store_failures += 1
            pause = back_off(self._now.store_failures, first=options.STORE_PAUSE, cap=options.STORE_PAUSE_CAP)
            await _wait(self._is_forced, pause)

    def _is_forced(self) -> bool:
        return (self._now.cancel is not None and self._now.cancel.force) or self._ledger.closed_as_row

    async def _tell_node(self, request: CancelRequest) -> None:
        now = self._now
        now.cancel_until = now.cancel_until or workflow.now() + self._policy.lost_after
        if now.state is not State.CANCELLING:
            self._ledger.move(
                Event.ASK_CANCEL, reason=request.why, detail=request.detail, until=now.cancel_until, by=request.by
            )
        now.node_heard = False
        result = await self.cancel_on_node(self._op_id, request.mode)
        if result.outcome is not None:
            self._conclude(result.outcome, request)
        elif result.stopped:
            self._end(request, f"node stopped after {result.stopped_after_s:.1f} s")
        else:
            self._ledger.write_behind()
            await self._wait_to_tell(request, follow=result.not_interruptible)

    async def _wait_to_tell(self, request: CancelRequest, *, follow: bool) -> None:
        """The node is unreachable, or a LocalAI worker that cannot be interrupted: its return or its end is awaited."""
        if follow and not self._node.is_attached:
            if self._now.sent_decision < self._now.decision:  # between two attempts: nothing runs there
                self._end(request)
                return
            self._node.follow()
        await _wait(lambda: self._node.has_answered or self._is_woken(), self._until_next_try())
        if not self._node.has_answered:
            return
        match await self._node.read():
            case Ended(outcome=outcome):
                self._conclude(outcome, request)
            case RowEnded(end=end):
                self._ledger.adopt(end)
            case _:
                await _wait(self._is_woken, self._until_next_try())

    def _is_woken(self) -> bool:
        return self._is_forced() or self._now.node_heard or self._now.row_doubted

    def _until_next_try(self) -> timedelta:
        left = self._now.cancel_until - workflow.now() if self._now.cancel_until else self._policy.node_poll
        return max(min(self._policy.node_poll, left), timedelta(0))

    def _conclude(self, outcome: Outcome, request: CancelRequest) -> None:
        """The cancel came too late: what the node reports stands."""
        match outcome.result:
            case Result.SUCCEEDED:
                detail = f"{what_changed(outcome, self._kind)}; the cancel came too late"
                self._ledger.move(Event.SUCCEED, detail=detail, outcome=outcome)
            case Result.FAILED if (reason := outcome.reason or Reason.NODE_ERROR) in PERMANENT:
                self._ledger.move(Event.FAIL, reason=reason, detail=outcome.error, outcome=outcome)
            case Result.FAILED:  # the attempt failed and there will be no other: that is what was asked for
                self._end(request, outcome.error)
            case _:
                self._end(request)

    def _end(self, request: CancelRequest, how: str = "") -> None:
        event, reason = _end_of(request)
        detail = "; ".join(part for part in (request.detail, how) if part)
        self._ledger.move(event, reason=reason, detail=detail, by=request.by)


def _end_of(request: CancelRequest) -> tuple[Event, Reason]:
    if request.why is Reason.DEADLINE:
        return Event.FAIL, Reason.DEADLINE
    forced = request.force and request.why is Reason.REQUESTED
    return Event.CANCEL, Reason.FORCED if forced else request.why


def _by(request: CancelRequest) -> str:
    return f" by {request.by}" if request.by else ""


async def _wait(woken: Callable[[], bool], pause: timedelta) -> None:
    try:
        await workflow.wait_condition(woken, timeout=pause)
    except TimeoutError:
        return

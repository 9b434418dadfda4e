"""Runs one change of a backend, or of a model's replica, on one node as a durable workflow."""

import asyncio
from datetime import timedelta
from typing import assert_never

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.nats.messages import CancelMode, Outcome, Result
    from nodesmith.contracts.outcome_words import what_changed
    from nodesmith.contracts.temporal import operations as names
    from nodesmith.contracts.temporal.dispatch import (
        Accepted,
        Busy,
        CancelPending,
        DispatchResult,
        Ended,
        HeldBack,
        NatsUnreachable,
        NodeUnreachable,
        NotAdmitted,
        OrderNotValid,
        Refused,
        RowEnded,
        Silent,
        StoreUnreachable,
    )
    from nodesmith.contracts.temporal.operations import (
        CancelRequest,
        NodeBack,
        OperationInput,
        OperationResult,
        OutcomeReport,
        PhaseReport,
        RowEndNotice,
        RunState,
        SlotGranted,
        Status,
    )
    from nodesmith.contracts.words import tell
    from nodesmith.domain.operation import PERMANENT, Event, Reason, State, back_off
    from nodesmith.workflows.backend_wait import BackendWait
    from nodesmith.workflows.cancellation import OperationCancel
    from nodesmith.workflows.node_session import NodeSession
    from nodesmith.workflows.operation_record import OperationRecord
    from nodesmith.workflows.operation_waits import OperationWaits

WEB_UI = "Temporal Web UI"


@workflow.defn(name=names.BACKEND_OPERATION)
class BackendOperation:
    """Dispatches to the node, follows its work, applies its answers and carries out a cancel.

    `RunState` holds everything that continue-as-new carries over; the other attributes are derived from the input or
    are only needed during one wait.
    """

    @workflow.init
    def __init__(self, start: OperationInput) -> None:
        self._request = start.request
        self._policy = start.policy
        self._run = start.carried or RunState()
        self._record = OperationRecord(start, self._run)
        self._node = NodeSession(start, self._run)
        self._waits = OperationWaits(start, self._run, self._record)
        self._backend = BackendWait(start, self._run, self._record)
        self._cancellation = OperationCancel(start, self._run, self._record, self._node)

    @workflow.run
    async def run(self, _start: OperationInput) -> OperationResult:
        work = asyncio.create_task(self._drive())
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:  # the cancel button of the Web UI acts like the cancel signal
                self._cancellation.request(CancelRequest(op_id=self._request.op_id, by=WEB_UI))
        return work.result()

    # signals and query

    @workflow.signal(name=names.SIGNAL_CANCEL)
    def cancel(self, request: CancelRequest) -> None:
        if request.op_id == self._request.op_id:
            self._cancellation.request(request)

    @workflow.signal(name=names.SIGNAL_NODE_BACK)
    def node_back(self, _: NodeBack) -> None:
        self._run.node_heard = True

    @workflow.signal(name=names.SIGNAL_OUTCOME)
    def outcome(self, report: OutcomeReport) -> None:
        """Wake the run. It then asks the node, because only the node's own answer counts."""
        if report.op_id == self._request.op_id:
            self._run.node_heard = True

    @workflow.signal(name=names.SIGNAL_ROW_ENDED)
    def row_ended(self, notice: RowEndNotice) -> None:
        if notice.op_id == self._request.op_id:
            self._run.row_doubted = True

    @workflow.signal(name=names.SIGNAL_PHASE)
    def phase(self, report: PhaseReport) -> None:
        if report.op_id == self._request.op_id:
            self._run.phase = report.phase

    @workflow.signal(name=names.SIGNAL_TURN)
    def turn(self, turn: SlotGranted) -> None:
        if turn.op_id == self._request.op_id:
            self._run.has_slot = True

    @workflow.query(name=names.QUERY_STATUS)
    def status(self) -> Status:
        return self._record.status()

    # the process

    async def _drive(self) -> OperationResult:
        while self._record.is_open:
            if self._run.row_doubted:
                await self._waits.recheck_row()
            elif self._run.cancel is not None:
                await self._cancellation.carry_out(self._run.cancel)
            elif self._backend.is_needed:
                await self._backend.wait()
            elif (result := await self._next_result()) is not None:
                await self._apply(result)
            self._continue_as_new_if_long()
        self._node.detach()
        await self._record.settle()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._result()

    async def _next_result(self) -> DispatchResult | None:
        """Dispatch or follow, and return the result; None if a cancel or a row report came first."""
        if self._is_past_deadline() and not self._node.is_attached:
            self._cancel_at_deadline()
            return None
        if self._node.needs_dispatch:
            return await self._node.dispatch()
        self._follow()
        if not await self._wait_for_event():
            self._cancel_at_deadline()
        if self._run.cancel is not None or self._run.row_doubted:
            return None
        return await self._node.read() if self._node.has_answered else Accepted()

    def _follow(self) -> None:
        if not self._node.is_attached:
            self._run.node_heard = False
            self._run.phase = None
            self._node.follow()

    async def _wait_for_event(self) -> bool:
        """Return False if the deadline passes first."""
        try:
            await workflow.wait_condition(self._has_event, timeout=self._until_deadline())
        except TimeoutError:
            return False
        return True

    def _has_event(self) -> bool:
        run = self._run
        has_started = run.phase is not None and run.state is not State.RUNNING
        return run.cancel is not None or run.row_doubted or self._node.has_answered or has_started

    def _cancel_at_deadline(self) -> None:
        self._cancellation.request(CancelRequest(op_id=self._request.op_id, why=Reason.DEADLINE))

    def _is_past_deadline(self) -> bool:
        """Checked before each attempt: attempts that fail at once have no follower that waits for the deadline."""
        left = self._until_deadline()
        return left is not None and left <= timedelta(0)

    def _until_deadline(self) -> timedelta | None:
        if self._run.dispatched_at is None or self._run.cancel is not None:
            return None
        return max(self._run.dispatched_at + self._policy.deadline - workflow.now(), timedelta(0))

    async def _apply(self, result: DispatchResult) -> None:  # noqa: C901, PLR0912 - one case per answer
        """Decide what each answer of the node or of the store means (the table of protocol 2)."""
        self._track_delivery(result)
        match result:
            case Accepted():
                await self._record.write()
            case Ended(outcome=outcome):
                await self._apply_outcome(outcome)
            case Busy(op_id=other):
                await self._stop_conflicting_operation(other)
            case Refused(why=why):
                self._record.move(Event.FAIL, reason=Reason.REFUSED_BY_NODE, detail=why)
            case HeldBack(why=why):
                await self._waits.wait_for(Reason.HELD, why)
            case RowEnded(end=end):
                self._record.adopt(end)
            case NotAdmitted(has_order=True):
                await self._waits.write_missing_row()
            case NotAdmitted():
                await self._waits.wait_for_order()
            case OrderNotValid(why=problem):
                await self._waits.wait_for(Reason.ORDER, problem)
            case CancelPending(by=by, why=why, detail=detail):
                self._cancellation.request(CancelRequest(op_id=self._request.op_id, by=by, why=why, detail=detail))
            case NodeUnreachable():
                await self._waits.wait_for_node()
            case NatsUnreachable():
                await self._waits.wait_for(Reason.NATS_DOWN)
            case StoreUnreachable():
                await self._waits.wait_for_store()
            case Silent():
                await self._mark_unobserved()
            case _:
                assert_never(result)

    def _track_delivery(self, result: DispatchResult) -> None:
        """Store what the result proves: whether a command may have arrived, and whether the node has started."""
        run = self._run
        run.store_failures = run.store_failures + 1 if isinstance(result, StoreUnreachable | NotAdmitted) else 0
        if not isinstance(result, NotAdmitted):
            run.unadmitted_since = None
        match result:
            case Accepted() | Ended():
                has_started, may_have_arrived = True, True
            case Busy() | Refused() | OrderNotValid() | Silent():
                has_started, may_have_arrived = isinstance(result, Silent) and result.accepted, True
            case NodeUnreachable() | NatsUnreachable() | StoreUnreachable():
                has_started = may_have_arrived = result.accepted
            case _:
                return
        if may_have_arrived:
            run.sent_decision = run.decision
        if has_started:
            run.accepted, run.away_since = True, None
            self._record.move(Event.DISPATCH)

    async def _apply_outcome(self, outcome: Outcome) -> None:
        """Apply the node's outcome: only the node can report success, or a failure that counts as an attempt."""
        match outcome.result:
            case Result.SUCCEEDED:
                detail = what_changed(outcome, self._request.wanted.kind)
                self._record.move(Event.SUCCEED, detail=detail, outcome=outcome)
            case Result.CANCELLED:
                self._record.move(Event.CANCEL, reason=Reason.REQUESTED, detail=outcome.error, outcome=outcome)
            case Result.FAILED:
                await self._apply_failure(outcome)
            case _:  # interrupted, or an unknown result: send again, without counting an attempt
                await self._mark_unobserved()

    async def _mark_unobserved(self) -> None:
        """The node did not answer, or a worker died: reattach to the node's work. This never counts as an attempt."""
        self._run.phase = None
        if self._run.dispatched_at is not None:
            self._record.move(Event.LOSE_SIGHT)
            await self._record.write()
        await self._waits.pause_before_reattach()

    async def _stop_conflicting_operation(self, other_op_id: str) -> None:
        """Cancel the operation that blocks this backend on the node: this run holds the lock, so it has no run."""
        result = await self._cancellation.cancel_on_node(other_op_id, CancelMode.DISCARD)
        if not result.stopped and result.outcome is None:
            await self._waits.pause(Reason.NODE_BUSY, options.BUSY_PAUSE, f"operation {other_op_id}")

    # failures

    async def _apply_failure(self, outcome: Outcome) -> None:
        reason = outcome.reason or Reason.NODE_ERROR
        if reason in PERMANENT or self._request.wanted.kind.rules.scheduled:
            self._record.move(Event.FAIL, reason=reason, detail=outcome.error, outcome=outcome)
        elif reason is Reason.SOURCE_DOWN:
            asked = timedelta(seconds=outcome.retry_after_s) if outcome.retry_after_s else self._policy.source_retry
            await self._decide_again(outcome, Reason.SOURCE_DOWN, asked, outcome.error)
        else:
            await self._back_off(reason, outcome)

    async def _back_off(self, reason: Reason, outcome: Outcome) -> None:
        self._run.failures += 1
        failures = self._run.failures
        detail = f"attempt {failures} of {self._policy.max_attempts}: {outcome.error or reason}"
        if failures >= self._policy.max_attempts:
            self._record.move(Event.EXHAUST, reason=Reason.ATTEMPTS_EXHAUSTED, detail=detail, outcome=outcome)
            return
        pause = back_off(failures, first=self._policy.back_off_first, cap=self._policy.back_off_cap)
        await self._decide_again(outcome, Reason.BACK_OFF, pause, detail)

    async def _decide_again(self, outcome: Outcome, reason: Reason, pause: timedelta, detail: str) -> None:
        """Retry under a new decision number. The timer makes it durable before the command is sent."""
        self._run.decision = max(self._run.decision, outcome.decision) + 1
        self._run.accepted = False
        await self._waits.pause(reason, max(pause, options.SHORTEST_PAUSE), detail)

    # the end

    def _continue_as_new_if_long(self) -> None:
        """Continue as new when the history is long, no follower is running and every row is written."""
        idle = self._record.is_open and self._record.is_settled and not self._node.is_attached
        if idle and workflow.all_handlers_finished() and workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(OperationInput(request=self._request, policy=self._policy, carried=self._run))

    def _result(self) -> OperationResult:
        """Return the result of a success or a cancel; raise for other ends, so that the Web UI shows a failed run."""
        end = self._record.end()
        result = OperationResult(op_id=self._request.op_id, **dict(end))
        if self._record.ended_by_row and self._record.is_reset:
            again = f"this operation had ended already; `nodesmith ops retry {self._request.op_id}` runs it again"
            result = result.model_copy(update={"detail": f"{end.detail}; {again}" if end.detail else again})
        if end.state not in (State.SUCCEEDED, State.CANCELLED):
            raise ApplicationError(
                tell(end.state, end.reason, result.detail), result, type=end.reason or end.state, non_retryable=True
            )
        return result

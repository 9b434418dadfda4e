"""One install, upgrade, rollback or removal on one node, as a durable process."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import assert_never

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts import temporal as names
    from contracts.dispatch import (
        Accepted,
        Busy,
        CancelPending,
        DispatchResult,
        Ended,
        Held,
        NatsUnreachable,
        NodeUnreachable,
        NotAdmitted,
        Refused,
        RowEnded,
        Silent,
        StoreUnreachable,
    )
    from contracts.messages import CancelMode, Outcome, Result
    from contracts.outcome_words import what_changed
    from contracts.temporal import (
        CancelRequest,
        NodeBack,
        OperationInput,
        OperationResult,
        OutcomeReport,
        PhaseReport,
        RowEndNotice,
        RunState,
        Status,
        Turn,
    )
    from contracts.words import tell
    from domain.operation import PERMANENT, Event, Reason, State, back_off
    from workflows.batch_slot import BatchSlot
    from workflows.cancelling import Cancelling
    from workflows.ledger import Ledger
    from workflows.node_session import NodeSession

WEB_UI = "Temporal Web UI"


@workflow.defn(name=names.BACKEND_OPERATION)
class BackendOperation:
    """Dispatch to the node, follow its work, apply its answer, carry out a cancel; any process may die meanwhile.

    What the run knows is in `RunState`, which continue-as-new hands over whole; everything else here is derived from
    the input or lives no longer than one wait.
    """

    @workflow.init
    def __init__(self, start: OperationInput) -> None:
        self._request = start.request
        self._policy = start.policy
        self._now = start.carried or RunState()
        self._ledger = Ledger(start, self._now)
        self._node = NodeSession(start, self._now)
        self._slot = BatchSlot(start, self._now)
        self._cancelling = Cancelling(start, self._now, self._ledger, self._node)

    @workflow.run
    async def run(self, _start: OperationInput) -> OperationResult:
        work = asyncio.create_task(self._drive())
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:  # the Web UI's own button takes the path of the signal
                self._cancelling.request(CancelRequest(op_id=self._request.op_id, by=WEB_UI))
        return work.result()

    # signals and query

    @workflow.signal(name=names.SIGNAL_CANCEL)
    def cancel(self, request: CancelRequest) -> None:
        if request.op_id == self._request.op_id:
            self._cancelling.request(request)

    @workflow.signal(name=names.SIGNAL_NODE_BACK)
    def node_back(self, _: NodeBack) -> None:
        self._now.node_heard = True

    @workflow.signal(name=names.SIGNAL_OUTCOME)
    def outcome(self, report: OutcomeReport) -> None:
        """It only wakes the run: the node is asked, and its answer counts."""
        if report.op_id == self._request.op_id:
            self._now.node_heard = True

    @workflow.signal(name=names.SIGNAL_ROW_ENDED)
    def row_ended(self, notice: RowEndNotice) -> None:
        if notice.op_id == self._request.op_id:
            self._now.row_doubted = True

    @workflow.signal(name=names.SIGNAL_PHASE)
    def phase(self, report: PhaseReport) -> None:
        if report.op_id == self._request.op_id:
            self._now.phase = report.phase

    @workflow.signal(name=names.SIGNAL_TURN)
    def turn(self, turn: Turn) -> None:
        if turn.op_id == self._request.op_id:
            self._now.has_slot = True

    @workflow.query(name=names.QUERY_STATUS)
    def status(self) -> Status:
        return self._ledger.status()

    # the process

    async def _drive(self) -> OperationResult:
        while self._ledger.is_open:
            if self._now.row_doubted:
                await self._look_at_row()
            elif self._now.cancel is not None:
                await self._cancelling.carry_out(self._now.cancel)
            elif (result := await self._next_result()) is not None:
                await self._apply(result)
            self._continue_as_new_if_long()
        self._node.detach()
        await self._ledger.settle()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._result()

    async def _look_at_row(self) -> None:
        """Somebody says that it has ended: a write tells, and is harmless if it has not."""
        self._now.row_doubted = False
        await self._ledger.announce()

    async def _next_result(self) -> DispatchResult | None:
        """What came of the dispatch, or of following the node; None when something else happened first."""
        if self._node.needs_dispatch:
            return await self._node.dispatch()
        self._follow()
        if not await self._something_happens():
            self._cancelling.request(CancelRequest(op_id=self._request.op_id, why=Reason.DEADLINE))
        if self._now.cancel is not None or self._now.row_doubted:
            return None
        return await self._node.read() if self._node.has_answered else Accepted()

    def _follow(self) -> None:
        if not self._node.is_attached:
            self._now.node_heard = False
            self._now.phase = None
            self._node.follow()

    async def _something_happens(self) -> bool:
        """False when the deadline passes first."""
        try:
            await workflow.wait_condition(self._anything_new, timeout=self._until_deadline())
        except TimeoutError:
            return False
        return True

    def _anything_new(self) -> bool:
        now = self._now
        has_begun = now.phase is not None and now.state is not State.RUNNING
        return now.cancel is not None or now.row_doubted or self._node.has_answered or has_begun

    def _until_deadline(self) -> timedelta | None:
        if self._now.dispatched_at is None or self._now.cancel is not None:
            return None
        return max(self._now.dispatched_at + self._policy.deadline - workflow.now(), timedelta(0))

    async def _apply(self, result: DispatchResult) -> None:  # noqa: C901, PLR0912 - one case per answer
        """The table of protocol 2: what each answer means to the run."""
        self._note(result)
        match result:
            case Accepted():
                await self._ledger.write()
            case Ended(outcome=outcome):
                await self._conclude(outcome)
            case Busy(op_id=other):
                await self._stop_conflicting_operation(other)
            case Refused(why=why):
                self._ledger.move(Event.FAIL, reason=Reason.REFUSED_BY_NODE, detail=why)
            case Held(why=why):
                await self._wait(Reason.HELD, why)
            case RowEnded(end=end):
                self._ledger.adopt(end)
            case NotAdmitted():
                await self._write_missing_row()
            case CancelPending(by=by):
                self._cancelling.request(CancelRequest(op_id=self._request.op_id, by=by))
            case NodeUnreachable():
                await self._wait_for_node()
            case NatsUnreachable():
                await self._wait(Reason.NATS_DOWN)
            case StoreUnreachable():
                await self._wait_for_store()
            case Silent():
                await self._mark_unobserved()
            case _:
                assert_never(result)

    def _note(self, result: DispatchResult) -> None:
        """Keep in the run's state what the answer proves: that a command may have arrived, that the node has begun."""
        now = self._now
        now.store_failures = now.store_failures + 1 if isinstance(result, StoreUnreachable | NotAdmitted) else 0
        match result:
            case Accepted() | Ended():
                has_begun, may_have_arrived = True, True
            case Busy() | Refused() | Silent():
                has_begun, may_have_arrived = isinstance(result, Silent) and result.accepted, True
            case NodeUnreachable() | NatsUnreachable() | StoreUnreachable():
                has_begun = may_have_arrived = result.accepted
            case _:
                return
        if may_have_arrived:
            now.sent_decision = now.decision
        if has_begun:
            now.accepted, now.away_since = True, None
            self._ledger.move(Event.DISPATCH)

    async def _conclude(self, outcome: Outcome) -> None:
        """The node's own report is the only way to succeed, and the only failure that counts."""
        match outcome.result:
            case Result.SUCCEEDED:
                detail = what_changed(outcome, self._request.wanted.kind)
                self._ledger.move(Event.SUCCEED, detail=detail, outcome=outcome)
            case Result.CANCELLED:
                self._ledger.move(Event.CANCEL, reason=Reason.REQUESTED, detail=outcome.error, outcome=outcome)
            case Result.FAILED:
                await self._failed(outcome)
            case _:  # interrupted, or a result we do not know: send again, it costs no attempt
                await self._mark_unobserved()

    async def _mark_unobserved(self) -> None:
        """No answer, or our worker died: the node goes on and we attach again. Never an attempt."""
        self._now.phase = None
        if self._now.dispatched_at is not None:
            self._ledger.move(Event.LOSE_SIGHT)
            await self._ledger.write()
        await self._sleep_until(self._is_cancelled, options.REATTACH_PAUSE)

    async def _stop_conflicting_operation(self, other_op_id: str) -> None:
        """We hold the lock, so the other operation on this backend at the node has no run any more."""
        result = await self._cancelling.cancel_on_node(other_op_id, CancelMode.DISCARD)
        if not result.stopped and result.outcome is None:
            await self._pause(Reason.NODE_BUSY, options.BUSY_PAUSE, f"operation {other_op_id}")

    # failures

    async def _failed(self, outcome: Outcome) -> None:
        reason = outcome.reason or Reason.NODE_ERROR
        if reason in PERMANENT:
            self._ledger.move(Event.FAIL, reason=reason, detail=outcome.error, outcome=outcome)
        elif reason is Reason.SOURCE_DOWN:
            asked = timedelta(seconds=outcome.retry_after_s) if outcome.retry_after_s else self._policy.source_retry
            await self._decide_again(outcome, Reason.SOURCE_DOWN, asked, outcome.error)
        else:
            await self._back_off(reason, outcome)

    async def _back_off(self, reason: Reason, outcome: Outcome) -> None:
        self._now.failures += 1
        failures = self._now.failures
        detail = f"attempt {failures} of {self._policy.max_attempts}: {outcome.error or reason}"
        if failures >= self._policy.max_attempts:
            self._ledger.move(Event.EXHAUST, reason=Reason.ATTEMPTS_EXHAUSTED, detail=detail, outcome=outcome)
            return
        pause = back_off(failures, first=self._policy.back_off_first, cap=self._policy.back_off_cap)
        await self._decide_again(outcome, Reason.BACK_OFF, pause, detail)

    async def _decide_again(self, outcome: Outcome, reason: Reason, pause: timedelta, detail: str) -> None:
        """A new decision to try. The timer makes it durable before its command goes out."""
        self._now.decision = max(self._now.decision, outcome.decision) + 1
        self._now.accepted = False
        await self._pause(reason, max(pause, options.SHORTEST_PAUSE), detail)

    async def _pause(self, reason: Reason, pause: timedelta, detail: str) -> None:
        """Wait without the node; only a cancel ends it early."""
        self._now.phase = None
        self._ledger.move(Event.POSTPONE, reason=reason, detail=detail, until=workflow.now() + pause)
        await self._ledger.write()
        await self._sleep_until(self._is_cancelled, pause)

    # waiting

    async def _wait_for_node(self) -> None:
        """Until the node gives a sign of life, or for as long as the policy allows."""
        now = self._now
        now.phase = None
        now.away_since = now.away_since or workflow.now()
        limit = self._policy.lost_after if now.sent_decision else self._policy.wait_for_node
        until = now.away_since + limit if limit is not None else None
        if until is not None and workflow.now() >= until:
            await self._give_up()
            return
        self._ledger.move(Event.POSTPONE, reason=Reason.NODE_AWAY, until=until)
        await self._ledger.write()
        left = until - workflow.now() if until is not None else None
        if self._slot.is_needed and not now.sent_decision:
            await self._wait_for_slot(left)
        else:
            poll = self._policy.node_poll
            await self._sleep_until(self._is_woken, poll if left is None else min(poll, left))
        now.node_heard = False

    async def _give_up(self) -> None:
        """The node never came, if the row proves that nothing was sent; otherwise it is lost with work on it."""
        if self._now.sent_decision:
            self._ledger.move(Event.FAIL, reason=Reason.LOST_NODE)
            return
        ended = await self._ledger.end_unsent(Event.EXPIRE, reason=Reason.NODE_NEVER_CAME)
        if ended is False:
            self._now.sent_decision = self._now.decision
        elif ended is None:
            self._now.store_failures += 1
            await self._wait_for_store()

    async def _wait_for_slot(self, left: timedelta | None) -> None:
        """Its batch gives the slot to others meanwhile: a node that is back waits until there is one again."""
        now = self._now
        await self._slot.give_back()
        await self._sleep_until(self._is_woken, left)
        if not now.node_heard or now.cancel is not None:
            return
        while await self._slot.request():
            self._ledger.move(Event.POSTPONE, reason=Reason.BATCH_TURN)
            await self._ledger.write()
            await self._sleep_until(self._may_begin, options.REQUEST_SLOT_AGAIN)
            if self._may_begin():
                now.away_since = None
                return

    async def _wait(self, reason: Reason, why: str = "") -> None:
        """For something that is not the node: its absence is not counted meanwhile."""
        self._now.phase = None
        until = workflow.now() + self._policy.node_poll if reason is Reason.NATS_DOWN else None
        self._ledger.move(Event.POSTPONE, reason=reason, detail=why, until=until)
        await self._ledger.write()
        await self._sleep_until(self._is_woken, self._policy.node_poll)
        self._now.node_heard = False

    async def _write_missing_row(self) -> None:
        """Dispatch follows at once; if the row could not be written, or is missing again, PostgreSQL is given time."""
        await self._ledger.announce()
        if self._now.store_failures > 1 or not self._ledger.is_settled:
            await self._wait_for_store()

    async def _wait_for_store(self) -> None:
        """Without PostgreSQL nothing is sent, and no row can say so."""
        pause = back_off(self._now.store_failures, first=options.STORE_PAUSE, cap=options.STORE_PAUSE_CAP)
        await self._sleep_until(self._is_cancelled, pause)

    def _may_begin(self) -> bool:
        return self._now.has_slot or self._is_cancelled()

    def _is_woken(self) -> bool:
        return self._now.node_heard or self._is_cancelled()

    def _is_cancelled(self) -> bool:
        return self._now.cancel is not None or self._ledger.closed_as_row

    async def _sleep_until(self, woken: Callable[[], bool], pause: timedelta | None) -> None:
        """A doubt about the row is looked into meanwhile, and cuts no wait short."""
        until = workflow.now() + pause if pause is not None else None
        while not woken():
            left = max(until - workflow.now(), timedelta(0)) if until is not None else None
            try:
                await workflow.wait_condition(lambda: woken() or self._now.row_doubted, timeout=left)
            except TimeoutError:
                return
            if self._now.row_doubted:
                await self._look_at_row()

    # the end

    def _continue_as_new_if_long(self) -> None:
        """A long life hands its state over; an activity that is attached is waited for first."""
        idle = self._ledger.is_open and self._ledger.is_settled and not self._node.is_attached
        if idle and workflow.all_handlers_finished() and workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(OperationInput(request=self._request, policy=self._policy, carried=self._now))

    def _result(self) -> OperationResult:
        """Succeeded and cancelled complete the run; the others make it red in the Web UI."""
        end = self._ledger.end()
        result = OperationResult(op_id=self._request.op_id, **dict(end))
        if self._ledger.closed_as_row and self._ledger.is_reset:
            again = f"this operation had ended already; `nodesmith ops retry {self._request.op_id}` runs it again"
            result = result.model_copy(update={"detail": f"{end.detail}; {again}" if end.detail else again})
        if end.state not in (State.SUCCEEDED, State.CANCELLED):
            raise ApplicationError(
                tell(end.state, end.reason, result.detail), result, type=end.reason or end.state, non_retryable=True
            )
        return result

"""One install, upgrade, rollback or removal on one node, as a durable process."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts import temporal as names
    from contracts.messages import CancelMode, Installed, Outcome, Result
    from contracts.temporal import (
        CancelRequest,
        CancelWord,
        NodeBack,
        NodeWord,
        OperationInput,
        OperationResult,
        OutcomeReport,
        PhaseReport,
        Status,
        Turn,
    )
    from contracts.words import tell
    from domain.operation import OPEN, PERMANENT, Event, Kind, Phase, Reason, State, back_off
    from workflows.ledger import Ledger
    from workflows.on_node import OnNode
    from workflows.turns import Turns

WEB_UI = "Temporal Web UI"
ON_NODE = frozenset({State.RUNNING, State.STILL_INSTALLING})


@workflow.defn(name=names.BACKEND_OPERATION)
class BackendOperation:
    """Wait for the node, run on it, heed what it says, carry out a cancel; whatever dies meanwhile."""

    @workflow.init
    def __init__(self, start: OperationInput) -> None:
        self._request = start.request
        self._policy = start.policy
        self._ledger = Ledger(start)
        self._phase: Phase | None = None
        self._cancel: CancelRequest | None = None
        self._node_heard = False
        self._reported: Outcome | None = None
        self._node = OnNode(start)
        self._away_since: datetime | None = None
        self._turns = Turns(start)

    @workflow.run
    async def run(self, _start: OperationInput) -> OperationResult:
        work = asyncio.create_task(self._drive())
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:  # the Web UI's own button takes the way of the signal
                self._ask_cancel(CancelRequest(op_id=self._request.op_id, by=WEB_UI))
        return work.result()

    # signals and query

    @workflow.signal(name=names.SIGNAL_CANCEL)
    def cancel(self, request: CancelRequest) -> None:
        if request.op_id == self._request.op_id and not (request.only_undispatched and self._node.may_have_heard):
            self._ask_cancel(request)

    @workflow.signal(name=names.SIGNAL_NODE_BACK)
    def node_back(self, _: NodeBack) -> None:
        self._node_heard = True

    @workflow.signal(name=names.SIGNAL_OUTCOME)
    def outcome(self, report: OutcomeReport) -> None:
        if report.outcome.op_id == self._request.op_id and report.outcome.result is not Result.INTERRUPTED:
            self._reported = report.outcome

    @workflow.signal(name=names.SIGNAL_PHASE)
    def phase(self, report: PhaseReport) -> None:
        if report.op_id == self._request.op_id:
            self._phase = report.phase

    @workflow.signal(name=names.SIGNAL_TURN)
    def turn(self, turn: Turn) -> None:
        if turn.op_id == self._request.op_id:
            self._turns.is_ours = True

    @workflow.query(name=names.QUERY_STATUS)
    def status(self) -> Status:
        return self._ledger.status(self._phase)

    # the process

    async def _drive(self) -> OperationResult:
        while self._ledger.state in OPEN:
            if self._cancel is not None:
                await self._carry_out(self._cancel)
            elif (word := await self._word_from_node()) is not None:
                await self._heed(word)
            self._continue_as_new_if_long()
        self._node.let_go()
        await self._ledger.settle()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._result()

    async def _word_from_node(self) -> NodeWord | None:
        """Attach to the node's work until it says something; None when a cancel or the deadline comes first."""
        if self._node.is_unasked:
            return await self._first_word()
        self._listen()
        if not await self._something_happens():
            self._ask_cancel(CancelRequest(op_id=self._request.op_id, why=Reason.DEADLINE))
        if self._reported is not None:
            return NodeWord(outcome=self._reported, accepted=True)
        if self._cancel is not None:
            return None
        if self._node.has_spoken:
            return await self._node.read()
        await self._dispatched()
        return None

    async def _first_word(self) -> NodeWord | None:
        """None when the node has begun and goes on, or when nobody knows: then we attach."""
        word = await self._node.first_word()
        if word is not None and word.accepted and word.outcome is None:
            await self._dispatched()
            return None
        return word

    def _listen(self) -> None:
        """A return of the node from before is heeded with this."""
        if not self._node.is_attached:
            self._node_heard = False
            self._node.listen(on_node=self._ledger.state in ON_NODE)

    async def _something_happens(self) -> bool:
        """False when the deadline passes first."""
        try:
            await workflow.wait_condition(self._anything_new, timeout=self._until_deadline())
        except TimeoutError:
            return False
        return True

    def _anything_new(self) -> bool:
        return (
            self._cancel is not None
            or self._reported is not None
            or self._node.has_spoken
            or (self._phase is not None and self._ledger.state is not State.RUNNING)
        )

    def _until_deadline(self) -> timedelta | None:
        if self._ledger.dispatched_at is None or self._cancel is not None:
            return None
        return max(self._ledger.dispatched_at + self._policy.deadline - workflow.now(), timedelta(0))

    async def _dispatched(self) -> None:
        """The node has begun: say so."""
        self._away_since = None
        self._ledger.move(Event.DISPATCH)
        await self._ledger.write()

    async def _heed(self, word: NodeWord) -> None:
        if word.accepted:
            self._away_since = None
            self._ledger.move(Event.DISPATCH)
        if word.outcome is not None:
            await self._conclude(word.outcome)
        elif word.busy_op_id:
            await self._make_room(word.busy_op_id)
        elif word.refused:
            self._ledger.move(Event.FAIL, reason=Reason.REFUSED_BY_NODE, detail=word.refused)
        elif word.held:
            await self._wait_for_release(word.held)
        elif word.link_down:
            await self._wait_for_nats()
        elif word.away:
            await self._wait_for_node()
        else:
            await self._lose_sight()

    async def _conclude(self, outcome: Outcome) -> None:
        """The node's own report is the only way to succeed, and the only failure that counts."""
        self._reported = None
        match outcome.result:
            case Result.SUCCEEDED:
                self._ledger.move(
                    Event.SUCCEED, detail=_what_changed(outcome, self._request.wanted.kind), outcome=outcome
                )
            case Result.CANCELLED:
                self._ledger.move(Event.CANCEL, reason=Reason.REQUESTED, detail=outcome.error, outcome=outcome)
            case Result.FAILED:
                await self._failed(outcome)
            case _:  # interrupted, or a word we do not know: send again, it costs no attempt
                await self._lose_sight()

    async def _lose_sight(self) -> None:
        """No answer, or our worker died: the node goes on and we attach again. Never an attempt."""
        self._phase = None
        if self._ledger.dispatched_at is not None:
            self._ledger.move(Event.LOSE_SIGHT)
            await self._ledger.write()
        await self._sleep_until(lambda: self._cancel is not None, options.REATTACH_PAUSE)

    async def _make_room(self, other_op_id: str) -> None:
        """We hold the lock, so whatever else works on this backend at the node has no owner any more."""
        word = await self._tell_node(other_op_id)
        if not word.stopped and word.outcome is None:
            await self._pause(Reason.NODE_BUSY, options.BUSY_PAUSE, f"operation {other_op_id}")

    async def _failed(self, outcome: Outcome) -> None:
        reason = outcome.reason or Reason.NODE_ERROR
        if reason in PERMANENT:
            self._ledger.move(Event.FAIL, reason=reason, detail=outcome.error, outcome=outcome)
        elif reason is Reason.SOURCE_DOWN:
            pause = timedelta(seconds=outcome.retry_after_s) if outcome.retry_after_s else self._policy.source_retry
            await self._pause(Reason.SOURCE_DOWN, pause, outcome.error)
        else:
            await self._back_off(reason, outcome)

    async def _back_off(self, reason: Reason, outcome: Outcome) -> None:
        failures = self._ledger.count_failure()
        if failures >= self._policy.max_attempts:
            detail = f"attempt {failures}: {outcome.error or reason}"
            self._ledger.move(Event.EXHAUST, reason=Reason.ATTEMPTS_EXHAUSTED, detail=detail, outcome=outcome)
            return
        pause = back_off(failures, first=self._policy.back_off_first, cap=self._policy.back_off_cap)
        await self._pause(Reason.BACK_OFF, pause, f"attempt {failures}: {outcome.error or reason}")

    async def _pause(self, reason: Reason, pause: timedelta, detail: str) -> None:
        """Wait without the node; only a cancel ends it early."""
        self._phase = None
        self._ledger.move(Event.POSTPONE, reason=reason, detail=detail, until=workflow.now() + pause)
        await self._ledger.write()
        await self._sleep_until(lambda: self._cancel is not None, pause)

    async def _wait_for_node(self) -> None:
        """Until the node is heard again, or for as long as we are willing to wait."""
        self._phase = None
        dispatched = self._ledger.dispatched_at is not None
        self._away_since = self._away_since or workflow.now()
        limit = self._policy.lost_after if dispatched else self._policy.wait_for_node
        until = self._away_since + limit if limit is not None else None
        if until is not None and workflow.now() >= until:
            self._give_up(dispatched=dispatched)
            return
        self._ledger.move(Event.POSTPONE, reason=Reason.NODE_AWAY, until=until)
        await self._ledger.write()
        left = until - workflow.now() if until is not None else None
        if self._turns.are_taken and not dispatched:
            await self._wait_for_turn(left)
        else:
            poll = self._policy.node_poll
            await self._sleep_until(self._woken, poll if left is None else min(poll, left))

    async def _wait_for_turn(self, left: timedelta | None) -> None:
        """Its batch gives its place to others meanwhile: that the node is back does not mean that there is room."""
        await self._turns.give_back()
        await self._sleep_until(self._woken, left)
        if not self._node_heard or self._cancel is not None:
            return
        while await self._turns.ask():
            self._ledger.move(Event.POSTPONE, reason=Reason.BATCH_TURN)
            await self._ledger.write()
            await self._sleep_until(self._may_begin, options.ASK_FOR_TURN_AGAIN)
            if self._may_begin():
                self._away_since = None
                return

    def _may_begin(self) -> bool:
        return self._turns.is_ours or self._cancel is not None

    async def _wait_for_nats(self) -> None:
        """Of the node nothing is known: this is no time that it was away."""
        self._phase = None
        self._ledger.move(Event.POSTPONE, reason=Reason.NATS_DOWN, until=workflow.now() + self._policy.node_poll)
        await self._ledger.write()
        await self._sleep_until(self._woken, self._policy.node_poll)

    async def _wait_for_release(self, why: str) -> None:
        self._ledger.move(Event.POSTPONE, reason=Reason.HELD, detail=why)
        await self._ledger.write()
        await self._sleep_until(self._woken, self._policy.node_poll)

    def _woken(self) -> bool:
        return self._node_heard or self._cancel is not None or self._reported is not None

    def _give_up(self, *, dispatched: bool) -> None:
        if dispatched:
            self._ledger.move(Event.FAIL, reason=Reason.LOST_NODE)
        else:
            self._ledger.move(Event.EXPIRE, reason=Reason.NODE_NEVER_CAME)

    async def _sleep_until(self, woken: Callable[[], bool], pause: timedelta | None) -> None:
        try:
            await workflow.wait_condition(woken, timeout=max(pause, timedelta(0)) if pause is not None else None)
        except TimeoutError:
            return

    # cancel

    def _ask_cancel(self, request: CancelRequest) -> None:
        if self._cancel is None or request.force:
            self._cancel = request

    async def _carry_out(self, request: CancelRequest) -> None:
        """Tell the node before we say that it stopped; the node's completion may win."""
        in_doubt = self._node.is_in_doubt
        if request.force or not (self._node.may_have_heard or in_doubt):
            self._cancelled(request)
            return
        if self._ledger.state is not State.CANCELLING:
            self._ledger.move(Event.ASK_CANCEL, reason=request.why, detail=request.detail, by=request.by)
        self._node_heard = False
        word = await self._tell_node(self._request.op_id)
        if word.outcome is not None:
            await self._conclude_late(word.outcome, request)
        elif in_doubt:  # it has never begun, as far as anybody knows, and never will
            self._cancelled(request)
        elif word.stopped:
            self._cancelled(request, f"node stopped after {word.stopped_after_s:.1f} s")
        else:
            self._ledger.write_behind()
            await self._until_node_can_be_told(request, cannot=word.cannot)

    def _cancelled(self, request: CancelRequest, how: str = "") -> None:
        said = "; ".join(part for part in (request.detail, how) if part)
        if request.why is Reason.DEADLINE:
            self._ledger.move(Event.FAIL, reason=Reason.DEADLINE, detail=said)
            return
        reason = Reason.FORCED if request.force and request.why is Reason.REQUESTED else request.why
        self._ledger.move(Event.CANCEL, reason=reason, detail=said, by=request.by)

    async def _conclude_late(self, outcome: Outcome, request: CancelRequest) -> None:
        """The cancel came too late: what the node says stands."""
        match outcome.result:
            case Result.SUCCEEDED:
                detail = f"{_what_changed(outcome, self._request.wanted.kind)}; the cancel came too late"
                self._ledger.move(Event.SUCCEED, detail=detail, outcome=outcome)
            case Result.FAILED:
                reason = outcome.reason or Reason.NODE_ERROR
                if reason in PERMANENT:
                    self._ledger.move(Event.FAIL, reason=reason, detail=outcome.error, outcome=outcome)
                else:  # the attempt failed and there will be no other: that is what was asked for
                    self._cancelled(request, outcome.error)
            case _:
                self._cancelled(request)

    async def _tell_node(self, op_id: str) -> CancelWord:
        """At once, where the run stands; a node that takes its time is told beside it, for as long as it takes."""
        mode = self._cancel.mode if self._cancel is not None else CancelMode.DISCARD
        if (word := await self._node.tell_at_once(op_id, mode)) is not None:
            return word
        self._ledger.write_behind()
        return await self._node.tell(op_id, mode)

    async def _until_node_can_be_told(self, request: CancelRequest, *, cannot: bool) -> None:
        """Node away, or a LocalAI worker that cannot be interrupted: wait for its word, its return, or force."""
        if cannot:
            self._listen()

        def woken() -> bool:
            forced = self._cancel is not None and self._cancel.force
            return self._node.has_spoken or forced or self._node_heard or self._reported is not None

        await self._sleep_until(woken, self._policy.node_poll)
        if self._reported is not None:
            await self._conclude_late(self._reported, request)
        elif self._node.has_spoken:
            word = await self._node.read()
            if word.outcome is not None:
                await self._conclude_late(word.outcome, request)

    # the end

    def _continue_as_new_if_long(self) -> None:
        """A long life hands on what it knows; an attached activity is left to the next run, which attaches again."""
        quiet = self._ledger.state in OPEN and self._cancel is None and not self._node.is_attached
        if quiet and self._reported is None and workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(
                OperationInput(
                    request=self._request,
                    policy=self._policy,
                    carried=self._ledger.carried(),
                    takes_turns=self._turns.are_taken,
                )
            )

    def _result(self) -> OperationResult:
        """Succeeded and cancelled complete the run; the others make it red in the Web UI."""
        ledger = self._ledger
        if ledger.state not in (State.SUCCEEDED, State.CANCELLED):
            raise ApplicationError(
                tell(ledger.state, ledger.reason, ledger.detail),
                type=ledger.reason or ledger.state,
                non_retryable=True,
            )
        outcome = ledger.outcome
        return OperationResult(
            op_id=self._request.op_id,
            state=ledger.state,
            detail=ledger.detail,
            before=outcome.before if outcome else None,
            after=outcome.after if outcome else None,
        )


def _what_changed(outcome: Outcome, kind: Kind) -> str:
    """A no-op is never told as a change."""
    before, after = _version(outcome.before), _version(outcome.after)
    if kind is Kind.REMOVE:
        return f"{before} removed".strip() if outcome.changed else "it was not installed; nothing changed"
    if not outcome.changed:
        return f"{after} was installed already; nothing changed".strip()
    return f"{before} -> {after}" if before else after


def _version(installed: Installed | None) -> str:
    return (installed.version or installed.digest[:19]) if installed else ""

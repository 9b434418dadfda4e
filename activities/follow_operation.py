"""Follows one operation on its node, from the command to the outcome."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from nodesmith.activities.dispatch import is_of_decision, read_answer
from nodesmith.activities.send_command import NotSent, Sender
from nodesmith.contracts.nats.messages import NodeOperationStatus, OpReply, Outcome, Progress, Result
from nodesmith.contracts.temporal.dispatch import (
    Accepted,
    DispatchResult,
    DispatchTask,
    Ended,
    NatsUnreachable,
    NodeUnreachable,
    Silent,
    StoreUnreachable,
    Unsent,
)
from nodesmith.domain.errors import LinkDown, NoAnswer, NodeAway, NodesmithError, ServiceUnavailable
from nodesmith.domain.operation import Phase
from nodesmith.services.ports import NodeLink, Reports

log = structlog.get_logger()

ReportPhase = Callable[[Phase], Awaitable[None]]

FIRST_REPORT_DELAY_S = 0.3
"""An install that ends this soon after its acceptance sends no separate "started" signal."""
FIRST_MEMBER_REPORT_DELAY_S = 1.5
MEMBER_REPORT_INTERVAL_S = 1 / 25
"""Batch members start by the hundred: their "started" signals come later and spaced out, to keep the load low."""
CANCEL_OUTCOME_DELAY_S = 2.0
"""The cancel activity receives this outcome first and ends the run; delay ours to avoid a race."""
REPORT_RETRY_S = 1.0
ASK_RETRY_S = 1.0
ASK_TIMEOUT_S = 3.0


class Stagger:
    """Spaces out the first reports of batch members."""

    def __init__(self, after_s: float = FIRST_MEMBER_REPORT_DELAY_S, apart_s: float = MEMBER_REPORT_INTERVAL_S) -> None:
        self._after_s = after_s
        self._apart_s = apart_s
        self._next = 0.0

    def next_time(self, now: float) -> float:
        slot_time = max(now + self._after_s, self._next)
        self._next = slot_time + self._apart_s
        return slot_time


class OperationFollower:
    """Serves one `run_on_node` activity: it reports what the node says; the workflow decides what that means."""

    def __init__(
        self,
        link: NodeLink,
        sender: Sender,
        task: DispatchTask,
        report_phase: ReportPhase,
        stagger: Stagger | None = None,
    ) -> None:
        self._link = link
        self._sender = sender
        self._node_id = task.request.node_id
        self._op_id = task.request.op_id
        self._decision = task.decision
        self._policy = task.policy
        self._report_phase = report_phase
        self._stagger = stagger if stagger and task.request.batch_id else None
        self._first_report_at: float | None = None
        """when to report the start; set once the node has accepted"""
        self._started_at = time.monotonic()
        self._last_heard_at = self._started_at
        self._is_retrying = False
        """the last request got no answer, so the next one follows after a short wait"""
        self._link_is_down = False
        """the last request was not sent, because NATS was unreachable"""
        self._phase = Phase.RESOLVING
        self._reported: tuple[Phase, float] | None = (self._phase, self._started_at) if task.accepted else None
        """phase and time of the last report; an accepted operation was reported by an earlier activity"""
        self.last_progress: Progress | None = None

    async def until_outcome(self) -> DispatchResult:
        """Ask the node for the operation, send the command if it is unknown there, then wait for the outcome."""
        async with self._link.attach(self._node_id, self._op_id) as reports:
            try:
                result = await self._attach()
                while result is None and self._time_left() > 0:
                    result = await self._listen(reports)
            except NotSent as refused:
                return self._not_sent_result(refused.why)
            return result or Silent(accepted=self._is_accepted())

    async def _attach(self) -> DispatchResult | None:
        """Ask the node for the first time; without a subscriber it is reported as unreachable at once."""
        try:
            reply = await self._link.ask(self._node_id, self._op_id, within=ASK_TIMEOUT_S)
        except NodeAway:
            return NodeUnreachable()
        except NoAnswer as silence:
            self._schedule_retry(silence)
            return None
        return await self._apply_status(reply)

    async def _send(self) -> DispatchResult | None:
        """Send the command; None when the node has started, or when that is unknown."""
        try:
            reply = await self._sender.send(within=self._policy.accept_timeout.total_seconds())
        except NodeAway:
            return NodeUnreachable(accepted=self._is_accepted())
        except NoAnswer as silence:
            self._schedule_retry(silence)
            return None
        self._mark_heard()
        result = read_answer(reply)
        if not isinstance(result, Accepted):
            return result
        self._mark_accepted()
        return None

    def _not_sent_result(self, why: Unsent) -> DispatchResult:
        return StoreUnreachable(accepted=self._is_accepted()) if isinstance(why, StoreUnreachable) else why

    async def _listen(self, reports: Reports) -> DispatchResult | None:
        report = await reports.next(self._wait_time())
        match report:
            case Outcome(result=Result.INTERRUPTED):
                return await self._resend()
            case Outcome(result=Result.CANCELLED):
                await asyncio.sleep(CANCEL_OUTCOME_DELAY_S)
                return Ended(outcome=report)
            case Outcome():
                if is_of_decision(report, self._decision):
                    return Ended(outcome=report)
            case Progress():
                self._record_progress(report)
            case None if self._is_first_report_pending() and self._until_first_report() <= 0:
                pass
            case None:
                if (result := await self._ask()) is not None:
                    return result
        await self._report_phase_if_due()
        return None

    async def _resend(self) -> DispatchResult | None:
        """Send the command again after the agent was interrupted; the agent does not resume by itself."""
        result = await self._send()
        return self._handle_silence(NodeAway()) if isinstance(result, NodeUnreachable) else result

    def _is_first_report_pending(self) -> bool:
        return self._is_accepted() and self._reported is None

    def _until_first_report(self) -> float:
        return (self._first_report_at or 0.0) - time.monotonic()

    def _wait_time(self) -> float:
        """Return the time until the next action that needs no report from the node."""
        if self._is_retrying:
            return ASK_RETRY_S
        quiet = min(self._policy.silence.total_seconds(), self._time_left())
        return max(min(quiet, self._until_first_report()) if self._is_first_report_pending() else quiet, 0.01)

    async def _ask(self) -> DispatchResult | None:
        try:
            reply = await self._link.ask(self._node_id, self._op_id, within=ASK_TIMEOUT_S)
        except (NodeAway, NoAnswer) as silence:
            return self._handle_silence(silence)
        return await self._apply_status(reply)

    async def _apply_status(self, reply: OpReply) -> DispatchResult | None:
        self._mark_heard()
        match reply.standing:
            case NodeOperationStatus.RUNNING:
                self._mark_accepted()
                if reply.progress is not None:
                    self._record_progress(reply.progress)
                return None
            case NodeOperationStatus.ENDED if reply.outcome is not None and is_of_decision(
                reply.outcome, self._decision
            ):
                return Ended(outcome=reply.outcome)
            case _:  # unknown to the node, interrupted, or a failure of an earlier decision
                return await self._send()

    def _handle_silence(self, silence: NodesmithError) -> DispatchResult | None:
        """Keep asking for the `silence` of the policy, because a restarting node or NATS server is back soon."""
        self._schedule_retry(silence)
        if time.monotonic() - self._last_heard_at <= self._policy.silence.total_seconds():
            return None
        if self._link_is_down:
            return NatsUnreachable(accepted=self._is_accepted())
        return NodeUnreachable(accepted=self._is_accepted())

    def _schedule_retry(self, silence: NodesmithError) -> None:
        self._is_retrying = True
        self._link_is_down = isinstance(silence, LinkDown)

    def _mark_heard(self) -> None:
        self._last_heard_at = time.monotonic()
        self._is_retrying = False

    def _mark_accepted(self) -> None:
        if self._first_report_at is None:
            now = time.monotonic()
            self._first_report_at = self._stagger.next_time(now) if self._stagger else now + FIRST_REPORT_DELAY_S

    def _is_accepted(self) -> bool:
        return self._first_report_at is not None

    def _record_progress(self, progress: Progress) -> None:
        self._mark_heard()
        self._mark_accepted()
        self._phase = progress.phase
        self.last_progress = progress

    async def _report_phase_if_due(self) -> None:
        """Signal the workflow that the node has started, then each new phase at a limited rate."""
        now = time.monotonic()
        if not self._is_accepted() or self._until_first_report() > 0:
            return
        if self._reported is not None:
            phase, at = self._reported
            if phase is self._phase or now - at < self._policy.phase_news.total_seconds():
                return
        try:
            await self._report_phase(self._phase)
        except ServiceUnavailable:  # retry later; only a phase that has ended by then is never reported
            self._first_report_at = now + REPORT_RETRY_S
            self._reported = (self._reported[0], now) if self._reported is not None else None
        else:
            self._reported = (self._phase, now)

    def _time_left(self) -> float:
        return self._policy.request_timeout.total_seconds() - (time.monotonic() - self._started_at)

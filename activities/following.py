"""Following one operation on its node, from the command to the outcome."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from activities.dispatch import is_of_decision, read_answer
from activities.sending import NotSent, Sender
from contracts.dispatch import (
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
from contracts.messages import OpReply, OpStanding, Outcome, Progress, Result
from domain.errors import LinkDown, NoAnswer, NodeAway, NodesmithError, ServiceUnavailable
from domain.operation import Phase
from services.ports import NodeLink, Reports

log = structlog.get_logger()

TellPhase = Callable[[Phase], Awaitable[None]]

FIRST_NEWS_S = 0.3
"""An install that is over so soon after the node took it on needs no signal of its own that it began."""
FIRST_NEWS_OF_MEMBERS_S = 1.5
NEWS_OF_MEMBERS_APART_S = 1 / 25
"""Members of batches begin by the hundred: later and so far apart they say so, that the news holds up no work."""
HEARD_ELSEWHERE_S = 2.0
"""Who cancels hears the node's word first, and ends the run with it: ours would come into the middle of that."""
NEWS_AGAIN_S = 1.0
ASK_AGAIN_S = 1.0
ASK_ANSWER_S = 3.0


class Pace:
    """Gives out moments for the first news of members, some time apart."""

    def __init__(self, after_s: float = FIRST_NEWS_OF_MEMBERS_S, apart_s: float = NEWS_OF_MEMBERS_APART_S) -> None:
        self._after_s = after_s
        self._apart_s = apart_s
        self._next = 0.0

    def moment(self, now: float) -> float:
        given = max(now + self._after_s, self._next)
        self._next = given + self._apart_s
        return given


class Following:
    """Lives as long as one `run_on_node`; decides nothing, only finds out what the node says."""

    def __init__(
        self, link: NodeLink, sender: Sender, task: DispatchTask, tell_phase: TellPhase, pace: Pace | None = None
    ) -> None:
        self._link = link
        self._sender = sender
        self._node_id = task.request.node_id
        self._op_id = task.request.op_id
        self._decision = task.decision
        self._policy = task.policy
        self._tell_phase = tell_phase
        self._pace = pace if pace and task.request.batch_id else None
        self._first_news_at: float | None = None
        """set when the node has taken it on"""
        self._began = time.monotonic()
        self._heard = self._began
        self._insisting = False
        """nobody answered the last question: the next one follows soon"""
        self._link_is_down = False
        """the last question was never asked"""
        self._phase = Phase.RESOLVING
        self._told: tuple[Phase, float] | None = (self._phase, self._began) if task.accepted else None
        """the run knows already that a node which has accepted works on it"""
        self.last_progress: Progress | None = None

    async def until_outcome(self) -> DispatchResult:
        """Protocol 2: ask what the node knows, send if it knows nothing, then wait for the outcome."""
        async with self._link.attach(self._node_id, self._op_id) as reports:
            try:
                result = await self._attach()
                while result is None and self._time_left() > 0:
                    result = await self._listen(reports)
            except NotSent as refused:
                return self._unsent(refused.why)
            return result or Silent(accepted=self._is_accepted())

    async def _attach(self) -> DispatchResult | None:
        """The first question. A node without a listener is reported as unreachable at once."""
        try:
            reply = await self._link.ask(self._node_id, self._op_id, within=ASK_ANSWER_S)
        except NodeAway:
            return NodeUnreachable()
        except NoAnswer as silence:
            self._insist(silence)
            return None
        return await self._read_standing(reply)

    async def _send(self) -> DispatchResult | None:
        """Send the command; None when the node has begun, or when we cannot know."""
        try:
            reply = await self._sender.send(within=self._policy.accept_timeout.total_seconds())
        except NodeAway:
            return NodeUnreachable(accepted=self._is_accepted())
        except NoAnswer as silence:
            self._insist(silence)
            return None
        self._hear()
        result = read_answer(reply)
        if not isinstance(result, Accepted):
            return result
        self._accept()
        return None

    def _unsent(self, why: Unsent) -> DispatchResult:
        return StoreUnreachable(accepted=self._is_accepted()) if isinstance(why, StoreUnreachable) else why

    async def _listen(self, reports: Reports) -> DispatchResult | None:
        report = await reports.next(self._patience())
        match report:
            case Outcome(result=Result.INTERRUPTED):
                return await self._again()
            case Outcome(result=Result.CANCELLED):
                await asyncio.sleep(HEARD_ELSEWHERE_S)
                return Ended(outcome=report)
            case Outcome():
                if is_of_decision(report, self._decision):
                    return Ended(outcome=report)
            case Progress():
                self._note(report)
            case None if self._first_news_due() and self._until_first_news() <= 0:
                pass
            case None:
                if (result := await self._ask()) is not None:
                    return result
        await self._news()
        return None

    async def _again(self) -> DispatchResult | None:
        """The agent stopped in the middle and begins nothing by itself: send it again as soon as it is there."""
        result = await self._send()
        return self._unheard(NodeAway()) if isinstance(result, NodeUnreachable) else result

    def _first_news_due(self) -> bool:
        return self._is_accepted() and self._told is None

    def _until_first_news(self) -> float:
        return (self._first_news_at or 0.0) - time.monotonic()

    def _patience(self) -> float:
        """Until the next thing we would do by ourselves."""
        if self._insisting:
            return ASK_AGAIN_S
        quiet = min(self._policy.silence.total_seconds(), self._time_left())
        return max(min(quiet, self._until_first_news()) if self._first_news_due() else quiet, 0.01)

    async def _ask(self) -> DispatchResult | None:
        try:
            reply = await self._link.ask(self._node_id, self._op_id, within=ASK_ANSWER_S)
        except (NodeAway, NoAnswer) as silence:
            return self._unheard(silence)
        return await self._read_standing(reply)

    async def _read_standing(self, reply: OpReply) -> DispatchResult | None:
        self._hear()
        match reply.standing:
            case OpStanding.RUNNING:
                self._accept()
                if reply.progress is not None:
                    self._note(reply.progress)
                return None
            case OpStanding.ENDED if reply.outcome is not None and is_of_decision(reply.outcome, self._decision):
                return Ended(outcome=reply.outcome)
            case _:  # it knows nothing of it, was interrupted, or failed an earlier decision
                return await self._send()

    def _unheard(self, silence: NodesmithError) -> DispatchResult | None:
        """A node or a NATS server that restarts is back soon, so we insist for a while."""
        self._insist(silence)
        if time.monotonic() - self._heard <= self._policy.silence.total_seconds():
            return None
        if self._link_is_down:
            return NatsUnreachable(accepted=self._is_accepted())
        return NodeUnreachable(accepted=self._is_accepted())

    def _insist(self, silence: NodesmithError) -> None:
        self._insisting = True
        self._link_is_down = isinstance(silence, LinkDown)

    def _hear(self) -> None:
        self._heard = time.monotonic()
        self._insisting = False

    def _accept(self) -> None:
        if self._first_news_at is None:
            now = time.monotonic()
            self._first_news_at = self._pace.moment(now) if self._pace else now + FIRST_NEWS_S

    def _is_accepted(self) -> bool:
        return self._first_news_at is not None

    def _note(self, progress: Progress) -> None:
        self._hear()
        self._accept()
        self._phase = progress.phase
        self.last_progress = progress

    async def _news(self) -> None:
        """Tell the workflow that the node has begun, then of a new phase, but seldom."""
        now = time.monotonic()
        if not self._is_accepted() or self._until_first_news() > 0:
            return
        if self._told is not None:
            phase, at = self._told
            if phase is self._phase or now - at < self._policy.phase_news.total_seconds():
                return
        try:
            await self._tell_phase(self._phase)
        except ServiceUnavailable:  # it is told a little later; only a phase that is over by then is not
            self._first_news_at = now + NEWS_AGAIN_S
            self._told = (self._told[0], now) if self._told is not None else None
        else:
            self._told = (self._phase, now)

    def _time_left(self) -> float:
        return self._policy.request_timeout.total_seconds() - (time.monotonic() - self._began)

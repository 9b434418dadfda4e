"""Sends the command of a decision and returns the node's answer, or the outcome if it comes at once."""

import time

from nodesmith.activities.send_command import NotSent, Sender
from nodesmith.contracts.nats.messages import Answer, CommandReply, Outcome, Result
from nodesmith.contracts.temporal.dispatch import (
    Accepted,
    Busy,
    DispatchResult,
    DispatchTask,
    Ended,
    NatsUnreachable,
    NodeUnreachable,
    OrderNotValid,
    Refused,
    Silent,
)
from nodesmith.domain.errors import LinkDown, NoAnswer, NodeAway
from nodesmith.domain.operation import Reason
from nodesmith.services.ports import NodeLink, Reports

OUTCOME_WAIT_S = 0.5
"""How long to wait for the outcome; short, because the workflow handles no signal meanwhile."""
MEMBER_OUTCOME_WAIT_S = 1.5
"""The same for batch members: an operation that ends with its dispatch costs half the work of one with a follower."""

MIN_ANSWER_WAIT_S = 0.25
"""minimum wait for the answer to the command, even after a slow permit"""


class Dispatcher:
    """Sends the command and waits briefly for its outcome; a follower continues with the same decision."""

    def __init__(self, link: NodeLink, sender: Sender, task: DispatchTask) -> None:
        self._link = link
        self._sender = sender
        self._task = task
        self._deadline = time.monotonic() + (MEMBER_OUTCOME_WAIT_S if task.request.batch_id else OUTCOME_WAIT_S)

    async def send(self) -> DispatchResult:
        async with self._link.attach(self._task.request.node_id, self._task.request.op_id) as reports:
            try:
                reply = await self._sender.send(within=max(self._time_left(), MIN_ANSWER_WAIT_S))
            except NotSent as refused:
                return refused.why
            except NodeAway:
                return NodeUnreachable()
            except LinkDown:
                return NatsUnreachable()
            except NoAnswer:
                return Silent()
            result = read_answer(reply)
            return await self._wait_for_outcome(reports) or result if isinstance(result, Accepted) else result

    async def _wait_for_outcome(self, reports: Reports) -> Ended | None:
        """Return the outcome; None when the work goes on, or was interrupted and must be sent again."""
        while (left := self._time_left()) > 0:
            report = await reports.next(left)
            if isinstance(report, Outcome) and is_of_decision(report, self._task.decision):
                return Ended(outcome=report) if report.result is not Result.INTERRUPTED else None
        return None

    def _time_left(self) -> float:
        return self._deadline - time.monotonic()


def read_answer(reply: CommandReply) -> Accepted | Ended | Busy | Refused | OrderNotValid:
    """Translate a protocol-2 node's reply to a command."""
    match reply.answer:
        case Answer.ACCEPTED | Answer.ATTACHED:
            return Accepted()
        case Answer.ENDED if reply.outcome is not None:
            return Ended(outcome=reply.outcome)
        case Answer.BUSY:
            return Busy(op_id=reply.busy_op_id)
        case Answer.REFUSED if reply.reason is Reason.ORDER:
            return OrderNotValid(why=reply.error)
        case _:
            return Refused(why=reply.error or f"the node answered {reply.answer}")


def is_of_decision(outcome: Outcome, decision: int) -> bool:
    """Whether the outcome applies: a failure counts only for its own decision, other ends are final for all."""
    return outcome.result is not Result.FAILED or outcome.decision >= decision

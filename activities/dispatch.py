"""The first request of a decision: the node's answer to the command, and the outcome of what ends at once."""

import time

from activities.sending import NotSent, Sender
from contracts.dispatch import (
    Accepted,
    Busy,
    DispatchResult,
    DispatchTask,
    Ended,
    NatsUnreachable,
    NodeUnreachable,
    Refused,
    Silent,
)
from contracts.messages import Answer, CommandReply, Outcome, Result
from domain.errors import LinkDown, NoAnswer, NodeAway
from services.ports import NodeLink, Reports

AT_ONCE_S = 0.5
"""The run can receive no signal while it waits here: time for what is quick, and no more."""
AT_ONCE_OF_MEMBERS_S = 1.5
"""Members of batches begin by the hundred, and each one that ends with its dispatch is half the work for all."""

SHORTEST_WAIT_S = 0.25
"""for the answer to the command, also when the permit took its time"""


class Dispatcher:
    """Sends the command and waits a moment for its outcome; a follower goes on from there with the same decision."""

    def __init__(self, link: NodeLink, sender: Sender, task: DispatchTask) -> None:
        self._link = link
        self._sender = sender
        self._task = task
        self._until = time.monotonic() + (AT_ONCE_OF_MEMBERS_S if task.request.batch_id else AT_ONCE_S)

    async def send(self) -> DispatchResult:
        async with self._link.attach(self._task.request.node_id, self._task.request.op_id) as reports:
            try:
                reply = await self._sender.send(within=max(self._left(), SHORTEST_WAIT_S))
            except NotSent as refused:
                return refused.why
            except NodeAway:
                return NodeUnreachable()
            except LinkDown:
                return NatsUnreachable()
            except NoAnswer:
                return Silent()
            result = read_answer(reply)
            return await self._outcome(reports) or result if isinstance(result, Accepted) else result

    async def _outcome(self, reports: Reports) -> Ended | None:
        """None when the work goes on, or was interrupted and is to be sent again."""
        while (left := self._left()) > 0:
            report = await reports.next(left)
            if isinstance(report, Outcome) and is_of_decision(report, self._task.decision):
                return Ended(outcome=report) if report.result is not Result.INTERRUPTED else None
        return None

    def _left(self) -> float:
        return self._until - time.monotonic()


def read_answer(reply: CommandReply) -> Accepted | Ended | Busy | Refused:
    """What a protocol-2 node's reply to a command means."""
    match reply.answer:
        case Answer.ACCEPTED | Answer.ATTACHED:
            return Accepted()
        case Answer.ENDED if reply.outcome is not None:
            return Ended(outcome=reply.outcome)
        case Answer.BUSY:
            return Busy(op_id=reply.busy_op_id)
        case _:
            return Refused(why=reply.error or f"the node answered {reply.answer}")


def is_of_decision(outcome: Outcome, decision: int) -> bool:
    """A failure of an earlier decision says nothing about this one; other ends are final for the operation."""
    return outcome.result is not Result.FAILED or outcome.decision >= decision

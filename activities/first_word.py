"""The first word of a node about an operation: its answer to the command, and the outcome of what is quick."""

import time

from activities.following import read_answer
from contracts.messages import Command, Outcome, Result
from contracts.temporal import NodeWord
from domain.errors import NoAnswer, NodeAway
from services.ports import NodeLink, Reports

AT_ONCE_S = 0.5
"""The run stands still for so long and can be told nothing meanwhile: time for what is quick, and no more."""
AT_ONCE_OF_MEMBERS_S = 1.5
"""Members of batches begin by the hundred, and each one that ends with its first word is half the work for all."""


class FirstWord:
    """Sends the command and hears what comes of it at once; who follows on sends it again, with the same decision."""

    def __init__(self, link: NodeLink, node_id: str, command: Command, *, within: float) -> None:
        self._link = link
        self._node_id = node_id
        self._command = command
        self._until = time.monotonic() + within

    async def heard(self) -> NodeWord:
        async with self._link.attach(self._node_id, self._command.op_id) as reports:
            try:
                reply = await self._link.command(self._node_id, self._command, within=self._left())
            except NodeAway:
                return NodeWord(away=True)
            except NoAnswer:
                return NodeWord()
            return read_answer(reply) or NodeWord(
                outcome=await self._outcome(reports), accepted=True, decision=self._command.decision
            )

    async def _outcome(self, reports: Reports) -> Outcome | None:
        """None when the work goes on, or was interrupted and is to be sent again."""
        while (left := self._left()) > 0:
            report = await reports.next(left)
            if isinstance(report, Outcome):
                return report if report.result is not Result.INTERRUPTED else None
        return None

    def _left(self) -> float:
        return self._until - time.monotonic()

"""Permits of one operation in memory; satisfies `services.ports.Permits`, as a test of the store shows."""

from contracts.dispatch import CancelPending, Granted, Held, NotAdmitted, Permit, RowEnded
from contracts.temporal import RowEnd


class MemoryPermits:
    def __init__(self) -> None:
        self.is_admitted = True
        self.end: RowEnd | None = None
        self.hold = ""
        self.cancelled_by = ""
        self.sent = 0
        self._sent_by = ""

    async def permit(
        self, op_id: str, decision: int, *, token: str, on_node: bool, while_cancelling: bool = False
    ) -> Permit:
        del op_id
        if not self.is_admitted:
            return NotAdmitted()
        if self.end is not None:
            return RowEnded(end=self.end)
        if self.cancelled_by and not while_cancelling:
            return CancelPending(by=self.cancelled_by)
        if self.hold and not on_node:
            return Held(why=self.hold)
        self.sent, self._sent_by = max(self.sent, decision), token if self.sent < decision else ""
        return Granted()

    async def withdraw(self, op_id: str, decision: int, *, token: str) -> None:
        del op_id
        if (self.sent, self._sent_by) == (decision, token):
            self.sent = decision - 1

"""Permits of one operation in memory; satisfies `services.ports.Permits`, as a test of the store shows."""

from contracts.dispatch import Granted, Held, NotAdmitted, Permit, RowEnded
from contracts.temporal import RowEnd


class MemoryPermits:
    def __init__(self) -> None:
        self.is_admitted = True
        self.end: RowEnd | None = None
        self.hold = ""
        self.sent = 0
        self._sent_by = ""

    async def permit(self, op_id: str, decision: int, *, token: str, on_node: bool) -> Permit:
        del op_id
        if not self.is_admitted:
            return NotAdmitted()
        if self.end is not None:
            return RowEnded(end=self.end)
        if self.hold and not on_node:
            return Held(why=self.hold)
        if self.sent < decision:
            self.sent, self._sent_by = decision, token
        return Granted()

    async def withdraw(self, op_id: str, decision: int, *, token: str) -> None:
        del op_id
        if (self.sent, self._sent_by) == (decision, token):
            self.sent = decision - 1

"""In-memory permits of one operation; implements `nodesmith.services.ports.Permits`, as a store test proves."""

from nodesmith.contracts.nats.wire import Signed
from nodesmith.contracts.temporal.dispatch import CancelPending, HeldBack, NotAdmitted, Permit, PermitGranted, RowEnded
from nodesmith.contracts.temporal.operations import OperationRequest, RowEnd
from tests.orders import signed_request


class MemoryPermits:
    def __init__(self) -> None:
        self.request: OperationRequest | None = None
        """what was admitted"""
        self.is_admitted = True
        self.has_order = True
        self.end: RowEnd | None = None
        self.hold = ""
        self.cancelled_by = ""
        self.sent = 0
        self._sent_by = ""
        self._order: tuple[OperationRequest, Signed] | None = None

    async def permit(
        self, op_id: str, decision: int, *, token: str, on_node: bool, while_cancelling: bool = False
    ) -> Permit:
        del op_id
        if not self.is_admitted:
            return NotAdmitted(has_order=self.has_order)
        if self.end is not None:
            return RowEnded(end=self.end)
        if self.cancelled_by and not while_cancelling:
            return CancelPending(by=self.cancelled_by)
        if self.hold and not on_node:
            return HeldBack(why=self.hold)
        self.sent, self._sent_by = max(self.sent, decision), token if self.sent < decision else ""
        assert self.request is not None
        return PermitGranted(order=self._signed(self.request))

    def _signed(self, request: OperationRequest) -> Signed:
        """The same order each time."""
        if self._order is None or self._order[0] != request:
            self._order = request, signed_request(request)
        return self._order[1]

    async def withdraw(self, op_id: str, decision: int, *, token: str) -> None:
        del op_id
        if (self.sent, self._sent_by) == (decision, token):
            self.sent = decision - 1

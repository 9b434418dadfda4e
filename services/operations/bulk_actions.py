"""Bulk actions: cancel or dismiss all operations that match a filter, with an optional preview."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from nodesmith.contracts.nats.messages import CancelMode
from nodesmith.domain.errors import NodesmithError, ServiceUnavailable
from nodesmith.domain.operation import Operation
from nodesmith.domain.operation_filter import OperationFilter
from nodesmith.services.operations.cancellation import Cancellation
from nodesmith.services.ports import OperationHistory

MAX_OPERATIONS = 10_000
CONCURRENCY = 20


@dataclass(frozen=True)
class ActionResult:
    """What a bulk action did to one operation that the filter matched."""

    operation: Operation
    """as it was when it matched"""
    accepted: bool | None = None
    """None in a preview"""
    note: str = ""
    """why it was refused, or a note"""


@dataclass(frozen=True)
class BulkActions:
    history: OperationHistory
    cancellation: Cancellation

    async def preview_cancel(self, wanted: OperationFilter) -> Sequence[ActionResult]:
        """The operations that a cancel would match."""
        return _preview(await self.history.list_open(wanted, limit=MAX_OPERATIONS))

    async def cancel(
        self, wanted: OperationFilter, *, actor: str, reason: str = "", mode: CancelMode = CancelMode.DISCARD
    ) -> Sequence[ActionResult]:
        """Send a cancel to each matching operation; some may end before they receive it."""
        matched = await self.history.list_open(wanted, limit=MAX_OPERATIONS)
        slots = asyncio.Semaphore(CONCURRENCY)

        async def one(operation: Operation) -> ActionResult:
            async with slots:
                return await self._cancel(operation, actor, reason, mode)

        return await asyncio.gather(*(one(operation) for operation in matched))

    async def preview_dismiss(self, wanted: OperationFilter) -> Sequence[ActionResult]:
        """The operations that a dismissal would match."""
        return _preview(await self.history.undismissed(wanted, limit=MAX_OPERATIONS))

    async def dismiss(self, wanted: OperationFilter) -> Sequence[ActionResult]:
        matched = await self.history.undismissed(wanted, limit=MAX_OPERATIONS)
        done = await self.history.dismiss([operation.op_id for operation in matched])
        return [ActionResult(operation, accepted=operation.op_id in done) for operation in matched]

    async def _cancel(self, operation: Operation, actor: str, reason: str, mode: CancelMode) -> ActionResult:
        try:
            note = await self.cancellation.cancel(operation.op_id, actor=actor, reason=reason, mode=mode)
        except ServiceUnavailable:
            raise
        except NodesmithError as refused:
            return ActionResult(operation, accepted=False, note=refused.message)
        return ActionResult(operation, accepted=True, note=note)


def _preview(matched: Sequence[Operation]) -> Sequence[ActionResult]:
    return [ActionResult(operation) for operation in matched]

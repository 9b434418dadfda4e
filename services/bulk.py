"""Orders by filter: cancel or dismiss everything that matches, after a look at what that is."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.operation_http import BulkBody, BulkItem, BulkResult, CancelBody, OperationView
from domain.errors import NodesmithError, ServiceUnavailable
from services.cancellation import Cancellation
from services.ports import OperationHistory

MOST_AT_ONCE = 10_000
SIDE_BY_SIDE = 20


@dataclass(frozen=True)
class Bulk:
    history: OperationHistory
    cancellation: Cancellation

    async def cancel(self, body: BulkBody, *, actor: str) -> BulkResult:
        """Ask each for a cancel, as a person would one by one; some may end before they are asked."""
        matched = await self.history.open_ones(body, limit=MOST_AT_ONCE)
        if body.preview:
            return _preview(matched)
        side_by_side = asyncio.Semaphore(SIDE_BY_SIDE)
        order = CancelBody(reason=body.reason, mode=body.mode)

        async def one(row: OperationView) -> BulkItem:
            async with side_by_side:
                return await self._cancel(row, order, actor)

        return _result(await asyncio.gather(*(one(row) for row in matched)))

    async def dismiss(self, body: BulkBody) -> BulkResult:
        matched = await self.history.undismissed(body, limit=MOST_AT_ONCE)
        if body.preview:
            return _preview(matched)
        done = await self.history.dismiss([row.op_id for row in matched])
        return _result([_item(row, accepted=row.op_id in done) for row in matched])

    async def _cancel(self, row: OperationView, order: CancelBody, actor: str) -> BulkItem:
        try:
            accepted = await self.cancellation.cancel(row.op_id, order, actor=actor)
        except ServiceUnavailable:
            raise
        except NodesmithError as refused:
            return _item(row, accepted=False, note=refused.message)
        return _item(row, accepted=True, note=accepted.note)


def _preview(matched: Sequence[OperationView]) -> BulkResult:
    return BulkResult(preview=True, matched=len(matched), operations=[_item(row) for row in matched])


def _result(items: list[BulkItem]) -> BulkResult:
    accepted = sum(bool(item.accepted) for item in items)
    return BulkResult(preview=False, matched=len(items), accepted=accepted, operations=items)


def _item(row: OperationView, *, accepted: bool | None = None, note: str = "") -> BulkItem:
    return BulkItem(
        op_id=row.op_id,
        node_name=row.node_name,
        backend=row.backend,
        kind=row.kind,
        state=row.state,
        accepted=accepted,
        note=note,
    )

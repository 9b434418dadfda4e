"""Bulk actions: cancel or dismiss all operations that match a filter, with an optional preview."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from nodesmith.contracts.http.operation_groups import BulkBody, BulkItem, BulkResult
from nodesmith.contracts.http.operations import CancelBody
from nodesmith.domain.errors import NodesmithError, ServiceUnavailable
from nodesmith.domain.operation import Operation
from nodesmith.services.operations.cancellation import Cancellation
from nodesmith.services.ports import OperationHistory

MAX_OPERATIONS = 10_000
CONCURRENCY = 20


@dataclass(frozen=True)
class BulkActions:
    history: OperationHistory
    cancellation: Cancellation

    async def cancel(self, body: BulkBody, *, actor: str) -> BulkResult:
        """Send a cancel to each matching operation; some may end before they receive it."""
        matched = await self.history.list_open(body, limit=MAX_OPERATIONS)
        if body.preview:
            return _preview(matched)
        slots = asyncio.Semaphore(CONCURRENCY)
        order = CancelBody(reason=body.reason, mode=body.mode)

        async def one(row: Operation) -> BulkItem:
            async with slots:
                return await self._cancel(row, order, actor)

        return _result(await asyncio.gather(*(one(row) for row in matched)))

    async def dismiss(self, body: BulkBody) -> BulkResult:
        matched = await self.history.undismissed(body, limit=MAX_OPERATIONS)
        if body.preview:
            return _preview(matched)
        done = await self.history.dismiss([row.op_id for row in matched])
        return _result([_item(row, accepted=row.op_id in done) for row in matched])

    async def _cancel(self, row: Operation, order: CancelBody, actor: str) -> BulkItem:
        try:
            accepted = await self.cancellation.cancel(row.op_id, order, actor=actor)
        except ServiceUnavailable:
            raise
        except NodesmithError as refused:
            return _item(row, accepted=False, note=refused.message)
        return _item(row, accepted=True, note=accepted.note)


def _preview(matched: Sequence[Operation]) -> BulkResult:
    return BulkResult(preview=True, matched=len(matched), operations=[_item(row) for row in matched])


def _result(items: list[BulkItem]) -> BulkResult:
    accepted = sum(bool(item.accepted) for item in items)
    return BulkResult(preview=False, matched=len(items), accepted=accepted, operations=items)


def _item(row: Operation, *, accepted: bool | None = None, note: str = "") -> BulkItem:
    return BulkItem(
        op_id=row.op_id,
        node_name=row.node_name,
        backend=row.backend,
        kind=row.kind,
        state=row.state,
        accepted=accepted,
        note=note,
    )

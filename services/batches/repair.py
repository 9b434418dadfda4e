"""Batch repair: ends batches whose run was terminated, deleted or failed; their members continue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from nodesmith.contracts.temporal.batches import (
    SIGNAL_ROW_MISSING,
    BatchOrder,
    batch_workflow_id,
)
from nodesmith.contracts.temporal.operations import CancelRequest, operation_workflow_id
from nodesmith.domain.batch import Batch, BatchState
from nodesmith.domain.operation import OPEN, Reason, State
from nodesmith.services.ports import BatchRegistry, OperationRuns

log = structlog.stdlib.get_logger(__name__)

ENDED_OUTSIDE = "ended outside Nodesmith (its run was terminated or deleted in Temporal, or failed)"


@dataclass(frozen=True)
class BatchRepair:
    """Compares open batch rows with the open runs in Temporal."""

    batches: BatchRegistry
    runs: OperationRuns
    clock: Callable[[], datetime]

    async def once(self) -> int:
        """Check every open batch; returns the number of repaired ones. Concurrent runs are safe."""
        rows, runs = await self.batches.open_ids(), await self.runs.open_batches()
        await self._signal_runs(sorted(runs - rows))
        return sum([await self._repaired(batch_id) for batch_id in sorted(rows - runs)])

    async def _signal_runs(self, batch_ids: Sequence[str]) -> None:
        """Signal open runs without a row, which then write it again; a run whose row has ended starts nothing."""
        known = await self.batches.known_among(batch_ids)
        for batch_id in batch_ids:
            if batch_id not in known:
                log.warning("batch without a row", batch=batch_id)
                await self.runs.order_batch(batch_id, SIGNAL_ROW_MISSING, BatchOrder())

    async def _repaired(self, batch_id: str) -> bool:
        run = await self.runs.describe(batch_workflow_id(batch_id))  # visibility lags; describe does not
        if run is not None and run.is_open:
            return False
        # A run writes its end before it closes; `end_outside` does not change a row that has ended since.
        if not await self.batches.end_outside(batch_id, detail=ENDED_OUTSIDE, at=self.clock()):
            return False
        log.warning("batch ended outside Nodesmith", batch=batch_id)
        batch = await self.batches.find(batch_id)
        if batch is not None and batch.state is BatchState.CANCELLED:
            await self._cancel_members(batch)
        elif batch is not None:
            await self._give_turns(batch)
        return True

    async def _give_turns(self, batch: Batch) -> None:
        """Give every waiting member its turn: the run is gone, and they would check only minutes later."""
        for member in await self.batches.members(batch.batch_id):
            waits = (member.state, member.reason) == (State.WAITING, Reason.BATCH_TURN)
            if member.op_id is not None and waits:
                await self.runs.grant_slot(operation_workflow_id(member.node_id, batch.family), member.op_id)

    async def _cancel_members(self, batch: Batch) -> None:
        """Cancel the members, because their run is gone; operations that the batch only joined continue."""
        name = f"batch {batch.batch_id}"
        detail = f"{name} {batch.detail.removeprefix('batch ')}"
        for member in await self.batches.members(batch.batch_id):
            if member.op_id is not None and not member.joined and member.state in OPEN:
                order = CancelRequest(op_id=member.op_id, by=name, why=Reason.BATCH_CANCELLED, detail=detail)
                await self.runs.cancel(operation_workflow_id(member.node_id, batch.family), order)

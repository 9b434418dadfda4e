"""Repair of batches: a run that was terminated, deleted or failed outside gets an honest end, its members go on."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from contracts.batches import batch_workflow_id
from contracts.temporal import operation_workflow_id
from domain.operation import Reason, State
from services.ports import BatchRegistry, OperationRuns

log = structlog.stdlib.get_logger(__name__)

ENDED_OUTSIDE = "ended outside Nodesmith (its run was terminated or deleted in Temporal, or failed)"


@dataclass(frozen=True)
class BatchRepair:
    """Compares the open batches with Temporal, which alone knows what runs."""

    batches: BatchRegistry
    runs: OperationRuns
    clock: Callable[[], datetime]

    async def once(self) -> int:
        """Look at every open batch; return how many had to be repaired. Two at once are harmless."""
        rows = await self.batches.open_ids()
        if not rows:
            return 0
        missing = rows - await self.runs.open_batches()
        return sum([await self._repaired(batch_id) for batch_id in sorted(missing)])

    async def _repaired(self, batch_id: str) -> bool:
        run = await self.runs.describe(batch_workflow_id(batch_id))  # visibility lags; describe does not
        if run is not None and run.is_open:
            return False
        # A run writes its end before it closes: `end_outside` leaves a row alone that has one by now.
        if not await self.batches.end_outside(batch_id, detail=ENDED_OUTSIDE, at=self.clock()):
            return False
        log.warning("batch ended outside Nodesmith", batch=batch_id)
        await self._let_members_begin(batch_id)
        return True

    async def _let_members_begin(self, batch_id: str) -> None:
        """Nobody is left to give turns; members that wait for one would notice by themselves only minutes later."""
        batch = await self.batches.find(batch_id)
        for member in await self.batches.members(batch_id):
            waits = (member.state, member.reason) == (State.WAITING, Reason.BATCH_TURN)
            if batch is not None and member.op_id is not None and waits:
                await self.runs.give_turn(operation_workflow_id(member.node_id, batch.family), member.op_id)

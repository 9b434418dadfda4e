"""Repair: rows whose run was terminated, deleted or reset away from outside get an honest end."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from contracts.messages import CancelAnswer, CancelCommand, Outcome, Result
from contracts.operation_http import OperationView
from contracts.temporal import Projection
from domain.errors import NoAnswer, NodeAway
from domain.node import Protocol
from domain.operation import ENDED, Reason, State
from services.ports import NodeLink, NodeRegistry, OperationRuns, Operations

log = structlog.get_logger()

ANSWER_S = 5.0
BEYOND_ANY_TRANSITION = 1_000_000
"""sorts after whatever the vanished run wrote in the same instant"""


@dataclass(frozen=True)
class Repair:
    """Compares the open rows with Temporal, which alone knows what runs."""

    nodes: NodeRegistry
    operations: Operations
    runs: OperationRuns
    link: NodeLink
    clock: Callable[[], datetime]

    async def once(self) -> int:
        """Look at every open row; return how many had to be repaired."""
        rows = await self.operations.open_operations()
        if not rows:
            return 0
        alive = {run.op_id for run in await self.runs.open_runs()}
        repaired = 0
        for row in rows:
            if row.op_id not in alive and not await self._runs_after_all(row) and not await self._has_ended(row):
                await self._end(row)
                repaired += 1
        return repaired

    async def _runs_after_all(self, row: OperationView) -> bool:
        """Visibility lags; describe does not."""
        run = await self.runs.describe(row.workflow_id)
        return run is not None and run.is_open and run.op_id == row.op_id

    async def _has_ended(self, row: OperationView) -> bool:
        """A run writes its end before it closes: once it is known to be closed, only a row without an end is wrong."""
        now = await self.operations.find(row.op_id)
        return now is None or now.state in ENDED

    async def _end(self, row: OperationView) -> None:
        request = await self.operations.request(row.op_id)
        if request is None:
            return
        outcome = await self._stop_on_node(row)
        log.warning("operation ended outside Nodesmith", op_id=row.op_id, node=row.node_name, backend=row.backend)
        now = self.clock()
        state, reason, detail = _honest_end(outcome)
        await self.operations.record(
            Projection(
                request=request,
                workflow_id=row.workflow_id,
                run_id=row.run_id,
                at=now,
                seq=BEYOND_ANY_TRANSITION,
                state=state,
                reason=reason,
                detail=detail,
                attempt=row.attempt,
                dispatched_at=row.dispatched_at,
                ended_at=now,
                outcome=outcome,
            )
        )

    async def _stop_on_node(self, row: OperationView) -> Outcome | None:
        """Stop the node's work; if it had ended there already, that is what happened."""
        node = await self.nodes.find(row.node_id)
        if node is None or node.protocol is Protocol.LOCALAI:
            return None
        try:
            reply = await self.link.cancel(
                row.node_id, CancelCommand(op_id=row.op_id, family=row.family), within=ANSWER_S
            )
        except (NodeAway, NoAnswer):
            return None  # its heartbeat will name the operation, and then it is stopped
        return reply.outcome if reply.answer is CancelAnswer.TOO_LATE else None


def _honest_end(outcome: Outcome | None) -> tuple[State, Reason, str]:
    if outcome is not None and outcome.result is Result.SUCCEEDED:
        return State.SUCCEEDED, Reason.ENDED_OUTSIDE, "the node had finished"
    if outcome is not None and outcome.result is Result.FAILED:
        return State.FAILED, outcome.reason or Reason.NODE_ERROR, outcome.error
    return State.FAILED, Reason.ENDED_OUTSIDE, ""

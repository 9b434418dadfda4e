"""Repair: rows and runs are compared both ways, and each learns what the other knows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from contracts.messages import CancelAnswer, CancelCommand, Outcome, Result
from contracts.operation_http import OperationView
from contracts.temporal import Projection, Run
from domain.errors import NoAnswer, NodeAway
from domain.node import Protocol
from domain.operation import ENDED, Reason, State
from services.ports import NodeLink, NodeRegistry, OperationRuns, Operations

log = structlog.get_logger()

ANSWER_S = 5.0
CLOSING = timedelta(seconds=10)
"""a run closes this soon after it wrote its end"""
BEYOND_ANY_TRANSITION = 1_000_000
"""sorts after whatever the vanished run wrote in the same instant"""


@dataclass(frozen=True)
class Repair:
    """A row without a run ends as its run did, as the node says, or honestly; a run whose row has ended is told."""

    nodes: NodeRegistry
    operations: Operations
    runs: OperationRuns
    link: NodeLink
    clock: Callable[[], datetime]

    async def once(self) -> int:
        """Look at every open row and every open run; return how many rows had to be repaired."""
        rows = await self.operations.open_operations()
        runs = await self.runs.open_runs()
        await self._tell_runs(runs)
        alive = {run.op_id for run in runs}
        repaired = 0
        for row in rows:
            if row.op_id not in alive and not await self._runs_after_all(row) and not await self._has_ended(row):
                await self._end(row)
                repaired += 1
        return repaired

    async def _tell_runs(self, runs: Sequence[Run]) -> None:
        """An open run whose row has ended closes as the row; one whose row is missing writes it again."""
        op_ids = [run.op_id for run in runs]
        known = await self.operations.standing(op_ids)
        long_ago = self.clock() - CLOSING
        ended = {row.op_id for row in await self.operations.ended_among(op_ids) if _ended_at(row) < long_ago}
        for run in runs:
            if run.op_id in ended or run.op_id not in known:
                log.warning("run without an open row", op_id=run.op_id, workflow_id=run.workflow_id)
                await self.runs.report_row_end(run.workflow_id, run.op_id)

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
        log.warning("operation ended outside Nodesmith", op_id=row.op_id, node=row.node_name, backend=row.backend)
        state, reason, detail, outcome = await self._how_it_ended(row)
        now = self.clock()
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

    async def _how_it_ended(self, row: OperationView) -> tuple[State, Reason | None, str, Outcome | None]:
        """As its closed run says (PostgreSQL was restored to an older moment), else the node, else honestly."""
        result = await self.runs.result(row.workflow_id, row.run_id)
        if result is None or result.op_id != row.op_id or result.state not in ENDED:
            outcome = await self._stop_on_node(row)
            return (*_honest_end(outcome), outcome)
        reported = Outcome(
            op_id=row.op_id, before=result.before, after=result.after, changed=result.state is State.SUCCEEDED
        )
        return result.state, result.reason, result.detail, reported

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


def _ended_at(row: OperationView) -> datetime:
    return row.ended_at or row.created_at


def _honest_end(outcome: Outcome | None) -> tuple[State, Reason, str]:
    if outcome is not None and outcome.result is Result.SUCCEEDED:
        return State.SUCCEEDED, Reason.ENDED_OUTSIDE, "the node had finished"
    if outcome is not None and outcome.result is Result.FAILED:
        return State.FAILED, outcome.reason or Reason.NODE_ERROR, outcome.error
    return State.FAILED, Reason.ENDED_OUTSIDE, ""

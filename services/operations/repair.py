"""Repair: compares rows with runs and corrects whichever side is behind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from nodesmith.contracts.nats.messages import CancelAnswer, CancelCommand, Outcome, Result
from nodesmith.contracts.temporal.operations import OperationRequest, OperationResult, Projection, Run
from nodesmith.domain.errors import BadSignature, NoAnswer, NodeAway
from nodesmith.domain.node import Protocol
from nodesmith.domain.operation import ENDED, Operation, Reason, State
from nodesmith.services.operations.verified_records import VerifiedRecords
from nodesmith.services.ports import NodeLink, NodeRegistry, OperationRuns, Operations

log = structlog.get_logger()

ANSWER_S = 5.0
CLOSE_TIMEOUT = timedelta(seconds=10)
"""a run closes within this time after it wrote its end"""
AFTER_ALL_TRANSITIONS = 1_000_000
"""sorts after every transition of the lost run with the same time"""


End = tuple[State, Reason | None, str, Outcome | None]


@dataclass(frozen=True)
class Repair:
    """Ends a row without a run (result of the run, outcome of the node, or unknown) and signals runs of ended rows."""

    nodes: NodeRegistry
    operations: Operations
    runs: OperationRuns
    link: NodeLink
    records: VerifiedRecords
    clock: Callable[[], datetime]

    async def once(self) -> int:
        """Check every open row and every open run; returns the number of repaired rows."""
        rows = await self.operations.open_operations()
        runs = await self.runs.open_runs()
        await self._signal_runs(runs)
        alive = {run.op_id for run in runs}
        repaired = 0
        for row in rows:
            if row.op_id not in alive and not await self._is_running(row) and not await self._has_ended(row):
                await self._end(row)
                repaired += 1
        return repaired

    async def _signal_runs(self, runs: Sequence[Run]) -> None:
        """Signal an open run whose row has ended, which then closes, or is missing, which it then writes again."""
        op_ids = [run.op_id for run in runs]
        known = await self.operations.states(op_ids)
        long_ago = self.clock() - CLOSE_TIMEOUT
        ended = {row.op_id for row in await self.operations.ended_among(op_ids) if _ended_at(row) < long_ago}
        for run in runs:
            if run.op_id in ended or run.op_id not in known:
                log.warning("run without an open row", op_id=run.op_id, workflow_id=run.workflow_id)
                await self.runs.report_row_end(run.workflow_id, run.op_id)

    async def _is_running(self, row: Operation) -> bool:
        """Use describe: visibility, which lists the open runs, lags."""
        run = await self.runs.describe(row.workflow_id)
        return run is not None and run.is_open and run.op_id == row.op_id

    async def _has_ended(self, row: Operation) -> bool:
        """Read the row again: a run writes its end before it closes, so the row may have ended since it was listed."""
        now = await self.operations.find(row.op_id)
        return now is None or now.state in ENDED

    async def _end(self, row: Operation) -> None:
        request = await self.operations.request(row.op_id)
        if request is None:
            return
        log.warning("operation ended outside Nodesmith", op_id=row.op_id, node=row.node_name, backend=row.backend)
        for find_end in (self._end_of_run, self._end_on_node, _unknown_end):
            if (end := await find_end(row)) is None:
                continue
            try:
                await self._write(request, row, end)
            except BadSignature as error:
                log.warning("repair.outcome_not_believed", op_id=row.op_id, error=error.message)
            else:
                return

    async def _write(self, request: OperationRequest, row: Operation, end: End) -> None:
        state, reason, detail, outcome = end
        now = self.clock()
        await self.records.record(
            Projection(
                request=request,
                workflow_id=row.workflow_id,
                run_id=row.run_id,
                at=now,
                seq=AFTER_ALL_TRANSITIONS,
                state=state,
                reason=reason,
                detail=detail,
                attempt=row.attempt,
                dispatched_at=row.dispatched_at,
                ended_at=now,
                outcome=outcome,
            )
        )

    async def _end_of_run(self, row: Operation) -> End | None:
        """The result of the closed run; needed after PostgreSQL was restored from a backup."""
        result = await self.runs.result(row.workflow_id, row.run_id)
        if result is None or result.op_id != row.op_id or result.state not in ENDED:
            return None
        return result.state, result.reason, result.detail, _reported(result)

    async def _end_on_node(self, row: Operation) -> End | None:
        outcome = await self._stop_on_node(row)
        if outcome is None or outcome.result not in (Result.SUCCEEDED, Result.FAILED):
            return None
        if outcome.result is Result.SUCCEEDED:
            return State.SUCCEEDED, Reason.ENDED_OUTSIDE, "the node had finished", outcome
        return State.FAILED, outcome.reason or Reason.NODE_ERROR, outcome.error, outcome

    async def _stop_on_node(self, row: Operation) -> Outcome | None:
        """Cancel the operation on the node; returns the outcome if it had ended there already."""
        node = await self.nodes.find(row.node_id)
        if node is None or node.protocol is Protocol.LOCALAI:
            return None
        try:
            reply = await self.link.cancel(
                row.node_id, CancelCommand(op_id=row.op_id, family=row.family), within=ANSWER_S
            )
        except (NodeAway, NoAnswer):
            return None  # the next heartbeat of the node lists the operation, and liveness cancels it
        return reply.outcome if reply.answer is CancelAnswer.TOO_LATE else None


def _ended_at(row: Operation) -> datetime:
    return row.ended_at or row.created_at


async def _unknown_end(_row: Operation) -> End:
    return State.FAILED, Reason.ENDED_OUTSIDE, "", None


def _reported(result: OperationResult) -> Outcome | None:
    """The outcome that the node signed; for a LocalAI worker, which does not sign, one made of the versions."""
    if result.signed_outcome:
        return Outcome.model_validate(result.signed_outcome)
    if result.state is not State.SUCCEEDED:
        return None
    return Outcome(op_id=result.op_id, before=result.before, after=result.after, changed=True, result=Result.SUCCEEDED)

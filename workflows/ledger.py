"""The operation's state inside its workflow, and how every change of it reaches PostgreSQL."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts import temporal as names
    from contracts.messages import Outcome
    from contracts.temporal import Carried, OperationInput, Projection, Status, Transitions
    from contracts.words import tell
    from domain.operation import ENDED, Event, Phase, Reason, State, advance


class Ledger:
    """Moves through the one table; what moved is written, in order, and survives a database that is away."""

    def __init__(self, start: OperationInput) -> None:
        carried = start.carried or Carried(state=State.QUEUED, seq=0)
        self._request = start.request
        self.state = carried.state
        self.reason = carried.reason
        self.detail = carried.detail
        self.until: datetime | None = None
        self.dispatched_at = carried.dispatched_at
        self.outcome: Outcome | None = None
        self._failures = carried.failures
        self._seq = carried.seq
        self._cancelled_by = ""
        self._unwritten: list[Projection] = []
        self._behind: set[asyncio.Task[None]] = set()

    def move(
        self,
        event: Event,
        *,
        reason: Reason | None = None,
        detail: str = "",
        until: datetime | None = None,
        outcome: Outcome | None = None,
        by: str = "",
    ) -> None:
        """Take the event; nothing is written when nothing changed."""
        state = advance(self.state, event)
        if (state, reason, detail, until) == (self.state, self.reason, self.detail, self.until):
            return
        self.state, self.reason, self.detail, self.until = state, reason, detail, until
        self.outcome = outcome or self.outcome
        self._cancelled_by = by or self._cancelled_by
        if event is Event.DISPATCH and self.dispatched_at is None:
            self.dispatched_at = workflow.now()
        self._seq += 1
        self._unwritten.append(self._row())

    def count_failure(self) -> int:
        self._failures += 1
        return self._failures

    async def write(self, how: Mapping[str, Any] = options.RECORD_AT_ONCE) -> None:
        """One quick local write; if it fails, the same write goes on behind us until it is done."""
        rows = self._take()
        if not rows:
            return
        try:
            await workflow.execute_local_activity(names.RECORD, Transitions(rows=rows), **how)
        except FailureError:  # a local activity fails with its cause, bare
            self._leave_behind(rows)

    def write_behind(self) -> None:
        """For the way of a cancel, which waits for no database."""
        if rows := self._take():
            self._leave_behind(rows)

    async def settle(self) -> None:
        """Before the run ends: every row is written."""
        await self.write(options.RECORD_THE_END)
        if self._behind:
            await asyncio.wait(self._behind)

    def status(self, phase: Phase | None) -> Status:
        return Status(
            op_id=self._request.op_id,
            state=self.state,
            reason=self.reason,
            detail=self.detail,
            until=self.until,
            phase=phase,
            attempt=self._failures + 1,
            dispatched=self.dispatched_at is not None,
        )

    def carried(self) -> Carried:
        return Carried(
            state=self.state,
            seq=self._seq,
            failures=self._failures,
            dispatched_at=self.dispatched_at,
            reason=self.reason,
            detail=self.detail,
        )

    def _take(self) -> tuple[Projection, ...]:
        rows, self._unwritten = tuple(self._unwritten), []
        if rows:
            self._show(rows[-1])
        return rows

    def _show(self, row: Projection) -> None:
        """What the Temporal Web UI lists and says."""
        workflow.upsert_search_attributes([names.STATE.value_set(row.state)])
        workflow.set_current_details(f"**{row.state}**: {tell(row.state, row.reason, row.detail)}")

    def _leave_behind(self, rows: tuple[Projection, ...]) -> None:
        task = asyncio.create_task(self._write_until_done(rows))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    async def _write_until_done(self, rows: tuple[Projection, ...]) -> None:
        await workflow.execute_activity(names.RECORD, Transitions(rows=rows), **options.record_until_done())

    def _row(self) -> Projection:
        info = workflow.info()
        return Projection(
            request=self._request,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            at=workflow.now(),
            seq=self._seq,
            state=self.state,
            reason=self.reason,
            detail=self.detail,
            until=self.until,
            attempt=self._failures + 1,
            dispatched_at=self.dispatched_at,
            ended_at=workflow.now() if self.state in ENDED else None,
            outcome=self.outcome,
            cancelled_by=self._cancelled_by,
        )

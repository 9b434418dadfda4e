"""The state of one run and its rows: every change goes through the table, and every row through PostgreSQL's guard."""

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
    from contracts.temporal import OperationInput, Projection, Recorded, RowEnd, RunState, Status, Transitions
    from contracts.words import tell
    from domain.operation import ENDED, OPEN, Event, Reason, advance

RESET = "reset in the Temporal Web UI"
MOST_ROWS = 50
"""in one write: each holds the whole request, and a payload has its limit"""


class Ledger:
    """Moves the state, writes each change, and survives a database that is away.

    The row is final once it has ended: a refused write brings its end back, and the run closes the same way.
    """

    def __init__(self, start: OperationInput, state: RunState) -> None:
        self._request = start.request
        self._now = state
        self._outcome: Outcome | None = None
        self._row_end: RowEnd | None = None
        self._unwritten: list[Projection] = []
        self._behind: list[Projection] = []
        """what a normal activity writes until it is done, in order"""
        self._writing_behind: asyncio.Task[None] | None = None
        self._reset_noted = False

    @property
    def is_open(self) -> bool:
        return self._now.state in OPEN

    @property
    def is_settled(self) -> bool:
        return not self._unwritten and self._writing_behind is None

    @property
    def closed_as_row(self) -> bool:
        """The row had an end that this run did not write."""
        return self._row_end is not None

    @property
    def is_reset(self) -> bool:
        """Somebody reset the run in the Temporal Web UI; equal after continue-as-new."""
        info = workflow.info()
        return info.run_id != info.original_execution_run_id

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
        """Apply the event; nothing is written when nothing changed."""
        now = self._now
        if self.closed_as_row:
            return
        state = advance(now.state, event)
        if (state, reason, detail, until) == (now.state, now.reason, now.detail, now.until):
            return
        now.state, now.reason, now.detail, now.until = state, reason, detail, until
        self._outcome = outcome or self._outcome
        now.cancelled_by = by or now.cancelled_by
        if event is Event.DISPATCH and now.dispatched_at is None:
            now.dispatched_at = workflow.now()
        now.seq += 1
        self._unwritten.append(self._row())

    def adopt(self, end: RowEnd) -> None:
        """Close as the row says, whatever this run would have said."""
        self._row_end = end
        self._unwritten.clear()
        self._now.state, self._now.reason, self._now.detail = end.state, end.reason, end.detail
        self._show(end)

    async def announce(self) -> None:
        """Write the row as it is: there is none yet, or nobody knows what it says."""
        if self.is_settled:
            self._unwritten.append(self._row())
        await self.write()

    async def write(self, how: Mapping[str, Any] = options.RECORD_AT_ONCE) -> None:
        """One quick local write; if it fails, the same write goes on behind us until it is done."""
        if self._writing_behind is not None:
            self.write_behind()
            return
        rows = self._take()
        if not rows:
            return
        try:
            recorded = await self._record(Transitions(rows=rows), how)
        except FailureError:  # a local activity fails with its cause, bare
            self._leave_behind(rows)
        else:
            self._apply(recorded)

    async def end_unsent(self, event: Event, *, reason: Reason, detail: str = "", by: str = "") -> bool | None:
        """End without the node's word, if the row proves that nothing was sent. False: it was; None: nobody knows."""
        earlier, before = list(self._unwritten), self._now.model_copy()
        self.move(event, reason=reason, detail=detail, by=by)
        try:
            recorded = await self._record(Transitions(rows=self._take(), only_unsent=True), options.RECORD_AT_ONCE)
        except FailureError:
            recorded = None
        if recorded is not None:
            self._apply(recorded)
        if self.closed_as_row or (recorded is not None and recorded.written):
            return True
        for name in ("state", "reason", "detail", "until", "seq", "cancelled_by"):
            setattr(self._now, name, getattr(before, name))
        self._unwritten = earlier
        return None if recorded is None else False

    def write_behind(self) -> None:
        """For the path of a cancel, which waits for no database."""
        if rows := self._take():
            self._leave_behind(rows)

    async def settle(self) -> None:
        """Before the run ends: every row is written."""
        await self.write(options.RECORD_THE_END)
        if self._writing_behind is not None:
            await self._writing_behind

    def status(self) -> Status:
        now = self._now
        return Status(
            op_id=self._request.op_id,
            state=now.state,
            reason=now.reason,
            detail=now.detail,
            until=now.until,
            phase=now.phase,
            attempt=now.failures + 1,
            dispatched=now.dispatched_at is not None,
        )

    def end(self) -> RowEnd:
        """How this operation ended, by our own writing or by the row's."""
        if self._row_end is not None:
            return self._row_end
        now, outcome = self._now, self._outcome
        return RowEnd(
            state=now.state,
            reason=now.reason,
            detail=now.detail,
            before=outcome.before if outcome else None,
            after=outcome.after if outcome else None,
        )

    async def _record(self, transitions: Transitions, how: Mapping[str, Any]) -> Recorded:
        recorded: Recorded = await workflow.execute_local_activity(
            names.RECORD, transitions, result_type=Recorded, **how
        )
        return recorded

    def _apply(self, recorded: Recorded) -> None:
        if recorded.end is not None:
            self.adopt(recorded.end)

    def _take(self) -> tuple[Projection, ...]:
        rows, self._unwritten = tuple(self._unwritten), []
        if rows:
            self._show(rows[-1])
        return rows

    def _show(self, row: Projection | RowEnd) -> None:
        """What the Temporal Web UI lists and says."""
        workflow.upsert_search_attributes([names.STATE.value_set(row.state)])
        workflow.set_current_details(f"**{row.state}**: {tell(row.state, row.reason, row.detail)}")

    def _leave_behind(self, rows: tuple[Projection, ...]) -> None:
        self._behind.extend(rows)
        if self._writing_behind is None:
            self._writing_behind = asyncio.create_task(self._write_until_done())

    async def _write_until_done(self) -> None:
        while self._behind:
            rows, self._behind = tuple(self._behind[:MOST_ROWS]), self._behind[MOST_ROWS:]
            recorded: Recorded = await workflow.execute_activity(
                names.RECORD, Transitions(rows=rows), result_type=Recorded, **options.record_until_done()
            )
            self._apply(recorded)
        self._writing_behind = None

    def _row(self) -> Projection:
        info, now = workflow.info(), self._now
        return Projection(
            request=self._request,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            at=workflow.now(),
            seq=now.seq,
            state=now.state,
            reason=now.reason,
            detail=self._with_reset(now.detail),
            until=now.until,
            attempt=now.failures + 1,
            dispatched_at=now.dispatched_at,
            ended_at=workflow.now() if now.state in ENDED else None,
            outcome=self._outcome,
            cancelled_by=now.cancelled_by,
        )

    def _with_reset(self, detail: str) -> str:
        """The first event after a reset says so. What the replayed part says was written before the reset."""
        if self._reset_noted or not self.is_reset or workflow.unsafe.is_replaying():
            return detail
        self._reset_noted = True
        return f"{RESET}; {detail}" if detail else RESET

"""Records one run: state changes go through the transition table, row writes through PostgreSQL's guard."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.nats.messages import Outcome
    from nodesmith.contracts.temporal import operations as names
    from nodesmith.contracts.temporal.operations import (
        OperationInput,
        Projection,
        RecordResult,
        RowEnd,
        RunState,
        Status,
        Transitions,
    )
    from nodesmith.contracts.words import tell
    from nodesmith.domain.operation import ENDED, OPEN, Event, Reason, advance

RESET = "reset in the Temporal Web UI"
MOST_ROWS = 50
"""rows in one write: each row holds the whole request, and Temporal limits the payload size"""


class OperationRecord:
    """Changes the state, writes each change to PostgreSQL, and keeps working while PostgreSQL is unreachable.

    An ended row is final: PostgreSQL refuses the write and returns the row's end, and the run closes with that end.
    """

    def __init__(self, start: OperationInput, state: RunState) -> None:
        self._request = start.request
        self._run = state
        self._outcome: Outcome | None = None
        self._row_end: RowEnd | None = None
        self._unwritten: list[Projection] = []
        self._background_rows: list[Projection] = []
        """rows that a normal (not local) activity writes in order, with retries"""
        self._writing_behind: asyncio.Task[None] | None = None
        self._reset_noted = False

    @property
    def is_open(self) -> bool:
        return self._run.state in OPEN

    @property
    def is_settled(self) -> bool:
        return not self._unwritten and self._writing_behind is None

    @property
    def ended_by_row(self) -> bool:
        """The row has an end that this run did not write."""
        return self._row_end is not None

    @property
    def is_reset(self) -> bool:
        """A user reset the run in the Temporal Web UI. Continue-as-new keeps both ids equal, so it does not count."""
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
        """Apply the event, and queue a row write if it changes anything."""
        run = self._run
        if self.ended_by_row:
            return
        after = advance(run.state, event)
        if (after, reason, detail, until) == (run.state, run.reason, run.detail, run.until):
            return
        run.state, run.reason, run.detail, run.until = after, reason, detail, until
        self._outcome = outcome or self._outcome
        run.cancelled_by = by or run.cancelled_by
        if event is Event.DISPATCH and run.dispatched_at is None:
            run.dispatched_at = workflow.now()
        run.seq += 1
        self._unwritten.append(self._row())

    def adopt(self, end: RowEnd) -> None:
        """Close with the end that the row has, instead of this run's own."""
        self._row_end = end
        self._unwritten.clear()
        self._run.state, self._run.reason, self._run.detail = end.state, end.reason, end.detail
        self._show_in_web_ui(end)

    async def write_current_row(self) -> None:
        """Write the current state again, because the row is missing or may differ."""
        if self.is_settled:
            self._unwritten.append(self._row())
        await self.write()

    async def write(self, activity_options: Mapping[str, Any] = options.RECORD_AT_ONCE) -> None:
        """Write with one short local activity; if that fails, a background activity retries until it succeeds."""
        if self._writing_behind is not None:
            self.write_behind()
            return
        rows = self._take_unwritten()
        if not rows:
            return
        try:
            recorded = await self._record(Transitions(rows=rows), activity_options)
        except FailureError:  # a local activity raises its cause, not an ActivityError
            self._write_in_background(rows)
        else:
            self._adopt_end_of(recorded)

    async def end_unsent(self, event: Event, *, reason: Reason, detail: str = "", by: str = "") -> bool | None:
        """End without the node if the row proves that no command was sent.

        False: a command was sent. None: unknown, because PostgreSQL did not answer.
        """
        earlier, before = list(self._unwritten), self._run.model_copy()
        self.move(event, reason=reason, detail=detail, by=by)
        try:
            recorded = await self._record(
                Transitions(rows=self._take_unwritten(), only_unsent=True), options.RECORD_AT_ONCE
            )
        except FailureError:
            recorded = None
        if recorded is not None:
            self._adopt_end_of(recorded)
        if self.ended_by_row or (recorded is not None and recorded.written):
            return True
        for name in ("state", "reason", "detail", "until", "seq", "cancelled_by"):
            setattr(self._run, name, getattr(before, name))
        self._unwritten = earlier
        return None if recorded is None else False

    def write_behind(self) -> None:
        """Write in the background, so that a cancel never waits for PostgreSQL."""
        if rows := self._take_unwritten():
            self._write_in_background(rows)

    async def settle(self) -> None:
        """Wait until every row is written; the run calls this before it ends."""
        await self.write(options.RECORD_THE_END)
        if self._writing_behind is not None:
            await self._writing_behind

    def status(self) -> Status:
        run = self._run
        return Status(
            op_id=self._request.op_id,
            state=run.state,
            reason=run.reason,
            detail=run.detail,
            until=run.until,
            phase=run.phase,
            attempt=run.failures + 1,
            dispatched=run.dispatched_at is not None,
        )

    def end(self) -> RowEnd:
        """Return how the operation ended, according to the row if it ended elsewhere, otherwise to this run."""
        if self._row_end is not None:
            return self._row_end
        run, outcome = self._run, self._outcome
        return RowEnd(
            state=run.state,
            reason=run.reason,
            detail=run.detail,
            before=outcome.before if outcome else None,
            after=outcome.after if outcome else None,
            signed_outcome=(outcome.signed or None) if outcome else None,
        )

    async def report_not_admitted(self) -> None:
        """Write an audit entry, with retries until it is stored."""
        await workflow.execute_activity(names.REPORT_NOT_ADMITTED, self._request, **options.record_until_done())

    async def _record(self, transitions: Transitions, activity_options: Mapping[str, Any]) -> RecordResult:
        recorded: RecordResult = await workflow.execute_local_activity(
            names.RECORD, transitions, result_type=RecordResult, **activity_options
        )
        return recorded

    def _adopt_end_of(self, recorded: RecordResult) -> None:
        if recorded.end is not None:
            self.adopt(recorded.end)

    def _take_unwritten(self) -> tuple[Projection, ...]:
        rows, self._unwritten = tuple(self._unwritten), []
        if rows:
            self._show_in_web_ui(rows[-1])
        return rows

    def _show_in_web_ui(self, row: Projection | RowEnd) -> None:
        """Update the search attribute and the details that the Temporal Web UI shows."""
        workflow.upsert_search_attributes([names.STATE.value_set(row.state)])
        workflow.set_current_details(f"**{row.state}**: {tell(row.state, row.reason, row.detail)}")

    def _write_in_background(self, rows: tuple[Projection, ...]) -> None:
        self._background_rows.extend(rows)
        if self._writing_behind is None:
            self._writing_behind = asyncio.create_task(self._write_until_done())

    async def _write_until_done(self) -> None:
        while self._background_rows:
            rows, self._background_rows = tuple(self._background_rows[:MOST_ROWS]), self._background_rows[MOST_ROWS:]
            recorded: RecordResult = await workflow.execute_activity(
                names.RECORD, Transitions(rows=rows), result_type=RecordResult, **options.record_until_done()
            )
            self._adopt_end_of(recorded)
        self._writing_behind = None

    def _row(self) -> Projection:
        info, run = workflow.info(), self._run
        return Projection(
            request=self._request,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            at=workflow.now(),
            seq=run.seq,
            state=run.state,
            reason=run.reason,
            detail=self._with_reset(run.detail),
            until=run.until,
            attempt=run.failures + 1,
            dispatched_at=run.dispatched_at,
            ended_at=workflow.now() if run.state in ENDED else None,
            outcome=self._outcome,
            cancelled_by=run.cancelled_by,
        )

    def _with_reset(self, detail: str) -> str:
        """Mention a reset in the first event after it; events of the replayed part were written before the reset."""
        if self._reset_noted or not self.is_reset or workflow.unsafe.is_replaying():
            return detail
        self._reset_noted = True
        return f"{RESET}; {detail}" if detail else RESET

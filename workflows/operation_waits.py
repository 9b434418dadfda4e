"""Waits of one operation: for its node, its batch slot, its order, PostgreSQL, or a fixed pause."""

from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.temporal.operations import OperationInput, RunState
    from nodesmith.domain.operation import Event, Reason, back_off
    from nodesmith.workflows.batch_slot import BatchSlot
    from nodesmith.workflows.operation_record import OperationRecord


class OperationWaits:
    """Records why the operation waits, then waits; a cancel ends every wait."""

    def __init__(self, start: OperationInput, state: RunState, record: OperationRecord) -> None:
        self._policy = start.policy
        self._run = state
        self._record = record
        self._slot = BatchSlot(start, state)

    async def pause(self, reason: Reason, pause: timedelta, detail: str) -> None:
        """Wait for a fixed time, which only a cancel shortens."""
        self._run.phase = None
        self._record.move(Event.POSTPONE, reason=reason, detail=detail, until=workflow.now() + pause)
        await self._record.write()
        await self._sleep_until(self._is_cancelled, pause)

    async def pause_before_reattach(self) -> None:
        await self._sleep_until(self._is_cancelled, options.REATTACH_PAUSE)

    async def wait_for_node(self) -> None:
        """Wait until a heartbeat of the node arrives, or until the limit of the policy."""
        run = self._run
        run.phase = None
        run.away_since = run.away_since or workflow.now()
        limit = self._policy.lost_after if run.sent_decision else self._policy.wait_for_node
        until = run.away_since + limit if limit is not None else None
        if until is not None and workflow.now() >= until:
            await self._end_without_node()
            return
        self._record.move(Event.POSTPONE, reason=Reason.NODE_AWAY, until=until)
        await self._record.write()
        left = until - workflow.now() if until is not None else None
        if self._slot.is_needed and not run.sent_decision:
            await self._wait_for_slot(left)
        else:
            poll = self._policy.node_poll
            await self._sleep_until(self._is_woken, poll if left is None else min(poll, left))
        run.node_heard = False

    async def _end_without_node(self) -> None:
        """End as expired if the row proves that no command was sent, otherwise as failed: the node is lost."""
        if self._run.sent_decision:
            self._record.move(Event.FAIL, reason=Reason.LOST_NODE)
            return
        ended = await self._record.end_unsent(Event.EXPIRE, reason=Reason.NODE_NEVER_CAME)
        if ended is False:
            self._run.sent_decision = self._run.decision
        elif ended is None:
            self._run.store_failures += 1
            await self.wait_for_store()

    async def _wait_for_slot(self, left: timedelta | None) -> None:
        """Release the batch slot while the node is away, and request one again when the node is back."""
        run = self._run
        await self._slot.release()
        await self._sleep_until(self._is_woken, left)
        if not run.node_heard or run.cancel is not None:
            return
        while await self._slot.request():
            self._record.move(Event.POSTPONE, reason=Reason.BATCH_TURN)
            await self._record.write()
            await self._sleep_until(self._may_begin, options.REQUEST_SLOT_AGAIN)
            if self._may_begin():
                run.away_since = None
                return

    async def wait_for(self, reason: Reason, why: str = "") -> None:
        """Wait for something other than the node; this time does not count as absence of the node."""
        self._run.phase = None
        until = workflow.now() + self._policy.node_poll if reason is Reason.NATS_DOWN else None
        self._record.move(Event.POSTPONE, reason=reason, detail=why, until=until)
        await self._record.write()
        await self._sleep_until(self._is_woken, self._policy.node_poll)
        self._run.node_heard = False

    async def write_missing_row(self) -> None:
        """Write the missing row and dispatch again; back off if the write fails or the row is missing once more."""
        await self._record.write_current_row()
        if self._run.store_failures > 1 or not self._record.is_settled:
            await self.wait_for_store()

    async def wait_for_order(self) -> None:
        """The API writes the order right after it starts the run; a run that no API admitted never gets one."""
        run = self._run
        run.unadmitted_since = run.unadmitted_since or workflow.now()
        if workflow.now() - run.unadmitted_since >= options.ORDER_WITHIN:
            await self._record.report_not_admitted()
            self._record.move(Event.FAIL, reason=Reason.NOT_ADMITTED)
            return
        await self._sleep_until(self._is_cancelled, options.ORDER_PAUSE)

    async def wait_for_store(self) -> None:
        """Back off while PostgreSQL is down: no command is sent, and no row can be written."""
        pause = back_off(self._run.store_failures, first=options.STORE_PAUSE, cap=options.STORE_PAUSE_CAP)
        await self._sleep_until(self._is_cancelled, pause)

    def _may_begin(self) -> bool:
        return self._run.has_slot or self._is_cancelled()

    def _is_woken(self) -> bool:
        return self._run.node_heard or self._is_cancelled()

    def _is_cancelled(self) -> bool:
        return self._run.cancel is not None or self._record.ended_by_row

    async def _sleep_until(self, is_woken: Callable[[], bool], pause: timedelta | None) -> None:
        """Wait; a report that the row has ended is checked meanwhile, without shortening the wait."""
        until = workflow.now() + pause if pause is not None else None
        while not is_woken():
            left = max(until - workflow.now(), timedelta(0)) if until is not None else None
            try:
                await workflow.wait_condition(lambda: is_woken() or self._run.row_doubted, timeout=left)
            except TimeoutError:
                return
            if self._run.row_doubted:
                await self.recheck_row()

    async def recheck_row(self) -> None:
        """Check a report that the row has ended: a write returns the row's end, and is harmless if it has none."""
        self._run.row_doubted = False
        await self._record.write_current_row()

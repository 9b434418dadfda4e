"""Runs one intent on many nodes. A batch requests operations like a user does; each has its own workflow."""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    import nodesmith.workflows.policy as options
    from nodesmith.contracts.temporal import batches as names
    from nodesmith.contracts.temporal.batches import (
        ENDED_BATCHES,
        AdmitMembers,
        Admitted,
        BatchCarried,
        BatchInput,
        BatchMember,
        BatchOrder,
        BatchProgress,
        BatchState,
        CancelMembers,
        CloseBatch,
        MemberReady,
        MembersWatched,
        MemberVerdict,
        Target,
        WatchMembers,
    )
    from nodesmith.contracts.temporal.operations import SIGNAL_TURN, SlotGranted, operation_workflow_id
    from nodesmith.domain.operation import Reason
    from nodesmith.workflows.batch_failures import Failures
    from nodesmith.workflows.batch_restore import joined_members, lost_members

Member = TypeVar("Member", str, BatchMember)
ORDERS_IN_TURN = "batch-orders-in-turn"
"""patch: an order that arrives while an earlier one is being recorded is applied before the next wait"""


@workflow.defn(name=names.BATCH)
class Batch:
    """A sliding window over a fixed list of targets. Absent nodes hold no slot, and get one after their return."""

    @workflow.init
    def __init__(self, batch: BatchInput) -> None:
        carried = batch.carried or BatchCarried(waiting=batch.targets)
        self._batch = batch
        self._waiting = list(carried.waiting)
        self._open: dict[str, Target] = dict(carried.open_ops)
        self._joined = set(carried.joined)
        self._away = frozenset(carried.away)
        self._ready = dict(carried.ready)
        """members whose nodes are back, in order of return: operation id -> workflow id"""
        self._has_slot = set(carried.has_turn)
        """members that were granted a slot after their return; their rows may still say that they are away"""
        self._failures = Failures(batch, carried)
        self._paused = carried.paused
        self._cancelled_by = carried.cancelled_by
        self._cancel_reason = carried.cancel_reason
        self._state = carried.state
        self._detail = carried.detail
        self._order_count = 0
        self._row_missing = False

    @workflow.run
    async def run(self, _batch: BatchInput) -> BatchProgress:
        work = asyncio.create_task(self._drive())
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:  # the cancel button of the Web UI acts like the cancel signal
                self.cancel(BatchOrder(by="Temporal Web UI"))
        return work.result()

    @workflow.signal(name=names.SIGNAL_PAUSE)
    def pause(self, _: BatchOrder) -> None:
        self._paused = True
        self._order_count += 1

    @workflow.signal(name=names.SIGNAL_RESUME)
    def resume(self, _: BatchOrder) -> None:
        self._paused = False
        self._order_count += 1

    @workflow.signal(name=names.SIGNAL_CANCEL)
    def cancel(self, order: BatchOrder) -> None:
        if self._cancelled_by is None:
            self._cancelled_by = order.by
            self._cancel_reason = order.reason
            self._order_count += 1

    @workflow.signal(name=names.SIGNAL_ROW_MISSING)
    def row_missing(self, _: BatchOrder) -> None:
        self._row_missing = True
        self._order_count += 1

    @workflow.signal(name=names.SIGNAL_READY)
    def ready(self, member: MemberReady) -> None:
        self._has_slot.discard(member.op_id)
        self._ready.pop(member.op_id, None)
        if member.is_ready:
            self._ready[member.op_id] = member.workflow_id

    @workflow.query(name=names.QUERY_PROGRESS)
    def progress(self) -> BatchProgress:
        ended = len(self._batch.targets) - len(self._waiting) - len(self._open)
        return BatchProgress(
            batch_id=self._batch.batch_id,
            state=self._state,
            waiting=len(self._waiting),
            running=len(self._open),
            ended=ended,
            failures=self._failures.members,
        )

    # the process

    async def _drive(self) -> BatchProgress:
        if self._batch.carried is None:
            await self._execute(names.OPEN_BATCH, self._batch)
        while self._waiting or self._open:
            seen = self._order_count
            await self._apply_orders()
            if self._order_count != seen and workflow.patched(ORDERS_IN_TURN):
                continue
            if returned := self._next_returned():
                await self._start_returned(returned)
            elif due := self._next_targets():
                await self._admit(due)
            elif self._open:
                await self._watch()
            elif self._waiting:
                await self._wait_for_order(self._order_count)
            self._continue_as_new_if_long()
        return await self._end()

    def _next_targets(self) -> tuple[Target, ...]:
        """Return the next targets, as many as the window has free slots."""
        if self._paused or self._cancelled_by is not None or self._failures.exceed_limit():
            return ()
        return tuple(self._waiting[: min(self._free_slots(), options.ADMIT_AT_ONCE)])

    def _free_slots(self) -> int:
        if self._batch.max_parallel == 0:
            return options.ADMIT_AT_ONCE
        absent = (self._away | self._ready.keys()) - self._has_slot
        return max(0, self._batch.max_parallel - len(self._open.keys() - absent))

    def _next_returned(self) -> tuple[str, ...]:
        """Return the next members whose nodes came back, as many as there are free slots."""
        if self._paused or self._cancelled_by is not None:
            return ()
        room = options.ADMIT_AT_ONCE if self._failures.exceed_limit() else self._free_slots()
        return tuple(islice((op_id for op_id in self._ready if op_id in self._open), room))

    async def _start_returned(self, returned: tuple[str, ...]) -> None:
        """Grant slots to returned members, or cancel them if the batch has stopped after too many failures."""
        runs = {op_id: self._ready.pop(op_id) for op_id in returned}
        if self._failures.exceed_limit():
            await self._cancel_members(returned, self._name(), Reason.BATCH_STOPPED, self._why_stopped())
        else:
            self._has_slot.update(runs)
            await asyncio.gather(*(self._grant_slot(op_id, run) for op_id, run in runs.items()))

    async def _grant_slot(self, op_id: str, workflow_id: str) -> None:
        try:
            await workflow.get_external_workflow_handle(workflow_id).signal(SIGNAL_TURN, SlotGranted(op_id=op_id))
        except FailureError:  # the operation has ended; its row is the evidence
            self._has_slot.discard(op_id)

    async def _admit(self, due: tuple[Target, ...]) -> None:
        admitted: Admitted = await self._execute(
            names.ADMIT_MEMBERS, AdmitMembers(batch=self._without_targets(), targets=due), result=Admitted
        )
        self._waiting = self._waiting[len(due) :]
        known = {target.node_id: target for target in due}
        for member in admitted.members:
            if member.op_id is not None and member.verdict is None:
                self._open[member.op_id] = known[member.node_id]
                if member.joined:
                    self._joined.add(member.op_id)

    async def _watch(self) -> None:
        """Wait until a member ends, a node leaves or returns, a user gives an order, or the history is long."""
        watching = workflow.start_activity(
            names.WATCH_MEMBERS,
            WatchMembers(
                batch_id=self._batch.batch_id,
                op_ids=tuple(self._open),
                away=tuple(sorted(self._away)),
                attempts=self._failures.known_attempts,
            ),
            result_type=MembersWatched,
            **options.WATCH_MEMBERS,
        )
        orders = self._order_count
        await workflow.wait_condition(
            lambda: watching.done() or self._order_count != orders or bool(self._next_returned()) or _history_is_long()
        )
        if not watching.done():
            watching.cancel()
        try:
            self._apply_watch_result(await watching)
        except ActivityError as error:
            if not is_cancelled_exception(error):
                raise

    def _apply_watch_result(self, watched: MembersWatched) -> None:
        self._away = frozenset(watched.away)
        self._failures.count(watched)
        for op_id in watched.ended:
            del self._open[op_id]
            self._ready.pop(op_id, None)
            self._has_slot.discard(op_id)

    async def _apply_orders(self) -> None:
        if self._row_missing:
            await self._restore_row()
        if self._cancelled_by is not None and self._state is not BatchState.CANCELLING:
            await self._stop_admitting(BatchState.CANCELLING, f"batch {self._why_cancelled()}")
            await self._cancel_own_members(self._cancelled_by)
        elif self._failures.exceed_limit() and self._has_more_to_stop():
            await self._stop_admitting(BatchState.STOPPED, f"batch {self._why_stopped()}")
        elif self._state in (BatchState.RUNNING, BatchState.PAUSED):
            await self._set_state(BatchState.PAUSED if self._paused else BatchState.RUNNING)

    def _has_more_to_stop(self) -> bool:
        """Whether members wait, or nodes are back or may return; a stopped row also stops those after this run ends."""
        return bool(self._waiting or self._ready or (self._away and self._state is not BatchState.STOPPED))

    async def _restore_row(self) -> None:
        """Write the row again after PostgreSQL was restored to an older copy: only this run still knows the batch."""
        self._row_missing = False
        left = (*self._waiting, *(each for op_id, each in self._open.items() if op_id not in self._joined))
        left_nodes = {each.node_id for each in (*self._waiting, *self._open.values())}
        elsewhere = (*joined_members(self._open, self._joined), *lost_members(self._batch, left_nodes))
        known = {"targets": left, "left_out": (*self._batch.left_out, *elsewhere), "carried": None}
        await self._execute(names.OPEN_BATCH, self._batch.model_copy(update=known))
        await self._record(())

    def _name(self) -> str:
        return f"batch {self._batch.batch_id}"

    def _why_stopped(self) -> str:
        return f"stopped after {self._failures.describe()}"

    def _why_cancelled(self) -> str:
        by = f"cancelled by {self._cancelled_by or 'an unknown user'}"
        return f"{by}: {self._cancel_reason}" if self._cancel_reason else by

    async def _stop_admitting(self, state: BatchState, why: str) -> None:
        """Give the verdict "not started" to every target that still waits."""
        left, self._waiting = self._waiting, []
        verdict = {"verdict": MemberVerdict.NOT_STARTED, "detail": f"not started: {why}"}
        members = (BatchMember(node_id=each.node_id, node_name=each.node_name, **verdict) for each in left)
        await self._set_state(state, why, members)

    async def _cancel_own_members(self, by: str) -> None:
        """Cancel the operations of this batch, but none that it only joined: another request owns those."""
        ours = tuple(op_id for op_id in self._open if op_id not in self._joined)
        if ours:
            await self._cancel_members(ours, by, Reason.BATCH_CANCELLED, self._why_cancelled())

    async def _cancel_members(self, op_ids: tuple[str, ...], by: str, why: Reason, detail: str) -> None:
        """Cancel operations; each records which batch cancelled it, and why."""
        for some in _chunks(op_ids):
            runs = {op_id: self._workflow_id_of(self._open[op_id]) for op_id in some if op_id in self._open}
            order = CancelMembers(op_ids=some, runs=runs, by=by, why=why, detail=f"{self._name()} {detail}")
            await self._execute(names.CANCEL_MEMBERS, order)

    def _workflow_id_of(self, target: Target) -> str:
        wanted = self._batch.builds.get(target.build, self._batch.wanted)
        return operation_workflow_id(target.node_id, wanted.family)

    async def _end(self) -> BatchProgress:
        """Record the end; raise if members failed, so that the Web UI shows a failed run."""
        ends = {BatchState.CANCELLING: BatchState.CANCELLED, BatchState.STOPPED: BatchState.STOPPED}
        await self._set_state(ends.get(self._state, BatchState.COMPLETED), self._detail)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._failures.members and self._state is not BatchState.CANCELLED:
            summary = f"{self._failures.members} of {len(self._batch.targets)} failed"
            raise ApplicationError(summary, type="members_failed", non_retryable=True)
        return self.progress()

    async def _set_state(self, state: BatchState, detail: str = "", members: Iterable[BatchMember] = ()) -> None:
        """Record the state unless nothing has changed."""
        changed_members = tuple(members)
        if (
            (state, detail or self._detail) == (self._state, self._detail)
            and not changed_members
            and state not in ENDED_BATCHES
        ):
            return
        self._state, self._detail = state, detail or self._detail
        workflow.set_current_details(f"**{state}** {self._detail}")
        await self._record(changed_members)

    async def _record(self, members: tuple[BatchMember, ...]) -> None:
        known = {"batch_id": self._batch.batch_id, "state": self._state, "detail": self._detail}
        for some in _chunks(members) or [()]:
            await self._execute(names.CLOSE_BATCH, CloseBatch(**known, at=workflow.now(), members=some))

    async def _wait_for_order(self, seen: int) -> None:
        await workflow.wait_condition(lambda: self._order_count != seen or _history_is_long())

    async def _execute(self, activity: str, argument: Any, result: type | None = None) -> Any:
        return await workflow.execute_activity(activity, argument, result_type=result, **options.BATCH_STEP)

    def _without_targets(self) -> BatchInput:
        return self._batch.model_copy(update={"targets": (), "left_out": (), "carried": None})

    def _continue_as_new_if_long(self) -> None:
        if (self._waiting or self._open) and not self._row_missing and _history_is_long():
            workflow.continue_as_new(self._batch.model_copy(update={"carried": self._carried()}))

    def _carried(self) -> BatchCarried:
        """Return the state that the next run needs after continue-as-new."""
        return BatchCarried(
            waiting=tuple(self._waiting),
            open_ops=self._open,
            joined=tuple(sorted(self._joined)),
            failures=self._failures.members,
            paused=self._paused,
            cancelled_by=self._cancelled_by,
            ready=self._ready,
            has_turn=tuple(sorted(self._has_slot)),
            away=tuple(sorted(self._away)),
            attempts=self._failures.attempts,
            ended_attempts=self._failures.ended_attempts,
            cancel_reason=self._cancel_reason,
            state=self._state,
            detail=self._detail,
        )


def _chunks(members: tuple[Member, ...]) -> list[tuple[Member, ...]]:
    """Divide members into payloads that Temporal accepts."""
    size = options.MEMBERS_AT_ONCE
    return [members[start : start + size] for start in range(0, len(members), size)]


def _history_is_long() -> bool:
    """Also true for a batch that only waits: members keep requesting slots, and Temporal limits signals per run."""
    return workflow.info().is_continue_as_new_suggested()

"""Many nodes, one intent: a batch asks for operations as a person would, and owns none of them."""

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    import workflows.policy as options
    from contracts import batches as names
    from contracts.batches import (
        ENDED_BATCHES,
        AdmitMembers,
        Admitted,
        BatchCarried,
        BatchInput,
        BatchOrder,
        BatchProgress,
        BatchState,
        CancelMembers,
        CloseBatch,
        Member,
        MemberReady,
        Target,
        Verdict,
        Watched,
        WatchMembers,
    )
    from contracts.temporal import SIGNAL_TURN, Turn, operation_workflow_id
    from domain.operation import Reason
    from workflows.batch_failures import Failures


@workflow.defn(name=names.BATCH)
class Batch:
    """A sliding window over frozen targets; nodes that are away do not fill it, and take a turn when they are back."""

    @workflow.init
    def __init__(self, batch: BatchInput) -> None:
        carried = batch.carried or BatchCarried(waiting=batch.targets)
        self._batch = batch
        self._waiting = list(carried.waiting)
        self._open: dict[str, Target] = dict(carried.open_ops)
        self._joined = set(carried.joined)
        self._away = frozenset(carried.away)
        self._ready = dict(carried.ready)
        """who was away and could begin now, in the order of their return, with the id of their run"""
        self._has_turn = set(carried.has_turn)
        """who was away and has a place again, whatever its row says yet"""
        self._failures = Failures(batch, carried)
        self._paused = carried.paused
        self._cancelled_by = carried.cancelled_by
        self._cancel_reason = carried.cancel_reason
        self._state = carried.state
        self._detail = carried.detail
        self._orders = 0

    @workflow.run
    async def run(self, _batch: BatchInput) -> BatchProgress:
        work = asyncio.create_task(self._drive())
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:  # the Web UI's own button takes the way of the signal
                self.cancel(BatchOrder(by="Temporal Web UI"))
        return work.result()

    @workflow.signal(name=names.SIGNAL_PAUSE)
    def pause(self, _: BatchOrder) -> None:
        self._paused = True
        self._orders += 1

    @workflow.signal(name=names.SIGNAL_RESUME)
    def resume(self, _: BatchOrder) -> None:
        self._paused = False
        self._orders += 1

    @workflow.signal(name=names.SIGNAL_CANCEL)
    def cancel(self, order: BatchOrder) -> None:
        if self._cancelled_by is None:
            self._cancelled_by = order.by
            self._cancel_reason = order.reason
            self._orders += 1

    @workflow.signal(name=names.SIGNAL_READY)
    def ready(self, member: MemberReady) -> None:
        self._has_turn.discard(member.op_id)
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
            await self._do(names.OPEN_BATCH, self._batch)
        while self._waiting or self._open:
            await self._heed_orders()
            if back := self._back():
                await self._let_begin(back)
            elif due := self._next():
                await self._admit(due)
            elif self._open:
                await self._watch()
            elif self._waiting:
                await self._new_order(self._orders)
            self._continue_as_new_if_long()
        return await self._end()

    def _next(self) -> tuple[Target, ...]:
        """Whose turn it is: as many as fit into the window beside those that really run."""
        if self._paused or self._cancelled_by is not None or self._failures.are_too_many():
            return ()
        return tuple(self._waiting[: min(self._room(), options.ADMIT_AT_ONCE)])

    def _room(self) -> int:
        if self._batch.max_parallel == 0:
            return options.ADMIT_AT_ONCE
        absent = (self._away | self._ready.keys()) - self._has_turn
        return max(0, self._batch.max_parallel - len(self._open.keys() - absent))

    def _back(self) -> tuple[str, ...]:
        """Whose turn it is of those whose nodes were away."""
        if self._paused or self._cancelled_by is not None:
            return ()
        room = options.ADMIT_AT_ONCE if self._failures.are_too_many() else self._room()
        return tuple(islice((op_id for op_id in self._ready if op_id in self._open), room))

    async def _let_begin(self, back: tuple[str, ...]) -> None:
        """Unless the batch has stopped meanwhile: what broke others is not done to those who come late."""
        runs = {op_id: self._ready.pop(op_id) for op_id in back}
        if self._failures.are_too_many():
            await self._cancel_members(back, self._name(), Reason.BATCH_STOPPED, self._why_stopped())
        else:
            self._has_turn.update(runs)
            await asyncio.gather(*(self._give_turn(op_id, run) for op_id, run in runs.items()))

    async def _give_turn(self, op_id: str, workflow_id: str) -> None:
        try:
            await workflow.get_external_workflow_handle(workflow_id).signal(SIGNAL_TURN, Turn(op_id=op_id))
        except FailureError:  # it has ended meanwhile: its row tells
            self._has_turn.discard(op_id)

    async def _admit(self, due: tuple[Target, ...]) -> None:
        admitted: Admitted = await self._do(
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
        """Until something ends, a node goes or comes, or somebody gives an order."""
        watching = workflow.start_activity(
            names.WATCH_MEMBERS,
            WatchMembers(
                batch_id=self._batch.batch_id,
                op_ids=tuple(self._open),
                away=tuple(sorted(self._away)),
                attempts=self._failures.known_attempts,
            ),
            result_type=Watched,
            **options.WATCH_MEMBERS,
        )
        orders = self._orders
        await workflow.wait_condition(lambda: watching.done() or self._orders != orders or bool(self._back()))
        if not watching.done():
            watching.cancel()
        try:
            self._note(await watching)
        except ActivityError as error:
            if not is_cancelled_exception(error):
                raise

    def _note(self, watched: Watched) -> None:
        self._away = frozenset(watched.away)
        self._failures.note(watched)
        for op_id in watched.ended:
            del self._open[op_id]
            self._ready.pop(op_id, None)
            self._has_turn.discard(op_id)

    async def _heed_orders(self) -> None:
        if self._cancelled_by is not None and self._state is not BatchState.CANCELLING:
            await self._stop(BatchState.CANCELLING, f"batch {self._why_cancelled()}")
            await self._cancel_ours(self._cancelled_by)
        elif self._failures.are_too_many() and (self._waiting or self._ready):
            await self._stop(BatchState.STOPPED, f"batch {self._why_stopped()}")
        elif self._state in (BatchState.RUNNING, BatchState.PAUSED):
            await self._say(BatchState.PAUSED if self._paused else BatchState.RUNNING)

    def _name(self) -> str:
        return f"batch {self._batch.batch_id}"

    def _why_stopped(self) -> str:
        return f"stopped after {self._failures.told()}"

    def _why_cancelled(self) -> str:
        by = f"cancelled by {self._cancelled_by or 'somebody'}"
        return f"{by}: {self._cancel_reason}" if self._cancel_reason else by

    async def _stop(self, state: BatchState, why: str) -> None:
        """Whoever has not had its turn will not have one."""
        left, self._waiting = self._waiting, []
        verdict = {"verdict": Verdict.NOT_STARTED, "detail": f"not started: {why}"}
        members = (Member(node_id=each.node_id, node_name=each.node_name, **verdict) for each in left)
        await self._say(state, why, members)

    async def _cancel_ours(self, by: str) -> None:
        """An operation that we only joined belongs to whoever asked for it."""
        ours = tuple(op_id for op_id in self._open if op_id not in self._joined)
        if ours:
            await self._cancel_members(ours, by, Reason.BATCH_CANCELLED, self._why_cancelled())

    async def _cancel_members(self, op_ids: tuple[str, ...], by: str, why: Reason, detail: str) -> None:
        """Each says which batch ended it, and why."""
        runs = {op_id: self._run_of(self._open[op_id]) for op_id in op_ids if op_id in self._open}
        order = CancelMembers(op_ids=op_ids, runs=runs, by=by, why=why, detail=f"{self._name()} {detail}")
        await self._do(names.CANCEL_MEMBERS, order)

    def _run_of(self, target: Target) -> str:
        wanted = self._batch.builds.get(target.build, self._batch.wanted)
        return operation_workflow_id(target.node_id, wanted.family)

    async def _end(self) -> BatchProgress:
        """Members that failed make the run red in the Web UI."""
        ends = {BatchState.CANCELLING: BatchState.CANCELLED, BatchState.STOPPED: BatchState.STOPPED}
        await self._say(ends.get(self._state, BatchState.COMPLETED), self._detail)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._failures.members and self._state is not BatchState.CANCELLED:
            summary = f"{self._failures.members} of {len(self._batch.targets)} failed"
            raise ApplicationError(summary, type="members_failed", non_retryable=True)
        return self.progress()

    async def _say(self, state: BatchState, detail: str = "", members: Iterable[Member] = ()) -> None:
        """Write it down, unless that is what was said last."""
        told = tuple(members)
        if (state, detail or self._detail) == (self._state, self._detail) and not told and state not in ENDED_BATCHES:
            return
        self._state, self._detail = state, detail or self._detail
        workflow.set_current_details(f"**{state}** {self._detail}")
        close = CloseBatch(
            batch_id=self._batch.batch_id, state=state, detail=self._detail, at=workflow.now(), members=told
        )
        await self._do(names.CLOSE_BATCH, close)

    async def _new_order(self, seen: int) -> None:
        await workflow.wait_condition(lambda: self._orders != seen)

    async def _do(self, activity: str, argument: Any, result: type | None = None) -> Any:
        return await workflow.execute_activity(activity, argument, result_type=result, **options.BATCH_STEP)

    def _without_targets(self) -> BatchInput:
        return self._batch.model_copy(update={"targets": (), "left_out": (), "carried": None})

    def _continue_as_new_if_long(self) -> None:
        if (self._waiting or self._open) and workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(self._batch.model_copy(update={"carried": self._carried()}))

    def _carried(self) -> BatchCarried:
        """Everything that the next run needs to go on as if it were this one."""
        return BatchCarried(
            waiting=tuple(self._waiting),
            open_ops=self._open,
            joined=tuple(sorted(self._joined)),
            failures=self._failures.members,
            paused=self._paused,
            cancelled_by=self._cancelled_by,
            ready=self._ready,
            has_turn=tuple(sorted(self._has_turn)),
            away=tuple(sorted(self._away)),
            attempts=self._failures.attempts,
            ended_attempts=self._failures.ended_attempts,
            cancel_reason=self._cancel_reason,
            state=self._state,
            detail=self._detail,
        )

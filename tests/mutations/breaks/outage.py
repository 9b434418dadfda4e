"""Breaks in delayed cancels, in the behaviour without PostgreSQL, and in permits."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules
from tests.mutations.breaks.dispatch import without


async def _tell_again_at_once(original: Any, self: Any, request: Any, *, follow: bool) -> None:
    """Neither waits after an answer that is no end, nor adopts the end of the row, nor knows the time between tries."""
    names = names_of(original)
    if follow and not self._node.is_attached:
        self._node.follow()
    await names._wait(lambda: self._node.has_answered or self._is_woken(), self._until_next_try())
    if self._node.has_answered and isinstance(result := await self._node.read(), names.Ended):
        self._apply_outcome(result.outcome, request)


def _keep_the_first_request(_: Any, self: Any, request: Any) -> None:
    if self._run.cancel is None or request.force:
        self._run.cancel = request


async def _dispatch_again_at_once(_: Any, self: Any) -> None:
    await self._record.write_current_row()


async def _unknown_is_sent(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    return bool(await original(self, *args, **kwargs))


async def _wait_though_a_cancel_is_pending(original: Any, self: Any, result: Any) -> None:
    if result.kind == "cancel_pending":
        result = names_of(original).HeldBack(why="not yet")
    await original(self, result)


async def _only_what_has_ended_is_closing(original: Any, self: Any, holder: Any) -> bool:
    names = names_of(original)
    state = (await self.operations.states([holder.op_id])).get(holder.op_id, (names.State.UNKNOWN, None))[0]
    return state in names.ENDED and await original(self, holder)


async def _cancel_who_has_a_row(original: Any, self: Any, cancel: Any) -> None:
    await original(self, cancel.model_copy(update={"runs": {}}))


def _stop_at_a_bad_file(original: Any, self: Any, path: Any) -> None:
    path.read_bytes()
    original(self, path)


async def _refuse_and_forget(_: Any, self: Any, holder: Any, request: Any) -> bool:
    return True


OUTAGE = (
    Break(
        rules("dispatch"),
        "a request that was refused ends the older one later",
        "nodesmith.services.operations.operation_lock:OperationLock._withdraw_cancel",
        _refuse_and_forget,
        tests=("test_operation_continues_when_its_superseding_request_is_refused",),
    ),
    Break(
        rules("batches"),
        "a batch is as new as the clock of the API says",
        "nodesmith.store.operations.batches:_row",
        lambda original, batch: {**original(batch), "at": batch.created_at},
        tests=("test_batch_end_is_accepted_when_the_api_clock_is_ahead",),
    ),
    Break(
        rules("chaos"),
        "a file of the journal that cannot be read ends the agent",
        "nodesmith.agent.operations.journal:DiskJournal._load_one",
        _stop_at_a_bad_file,
        tests=("test_file_that_cannot_be_read_does_not_keep_the_agent_from_starting",),
    ),
    Break(
        rules("dispatch"),
        "the cancel of a LocalAI worker is tried again at once",
        "nodesmith.workflows.cancellation:OperationCancel._wait_before_next_try",
        _tell_again_at_once,
        tests=(
            "test_cancel_of_an_absent_worker_waits_between_its_tries",
            "test_cancel_between_two_attempts_sends_nothing_more",
            "test_cancel_closes_with_the_row_end_that_its_follower_found",
        ),
        limit_s=60,
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "a cancel that may be dropped keeps a person's cancel out",
        "nodesmith.workflows.cancellation:OperationCancel.request",
        _keep_the_first_request,
        tests=("test_cancel_by_a_person_replaces_one_that_may_be_dropped",),
        waits=True,
    ),
    Break(
        rules("degraded"),
        "a row that cannot be written is tried without a pause",
        "nodesmith.workflows.operation_waits:OperationWaits.write_missing_row",
        _dispatch_again_at_once,
        tests=("test_missing_row_that_cannot_be_written_is_waited_for",),
        limit_s=60,
        waits=True,
    ),
    Break(
        rules("degraded"),
        "an unsent command counts as sent while PostgreSQL is away",
        "nodesmith.workflows.operation_record:OperationRecord.end_unsent",
        _unknown_is_sent,
        tests=(
            "test_cancel_of_what_was_never_sent_waits_for_postgresql",
            "test_operation_that_was_never_sent_expires_after_an_outage",
        ),
        waits=True,
    ),
    Break(
        rules("restored"),
        "a run that forgot its cancel does not carry it out",
        "nodesmith.workflows.backend_operation:BackendOperation._apply",
        _wait_though_a_cancel_is_pending,
        tests=("test_run_without_its_cancel_signal_carries_out_the_recorded_cancel",),
        waits=True,
    ),
    Break(
        rules("dispatch"),
        "the permit is granted while a cancel is pending",
        "nodesmith.store.operations.permits:_PERMIT",
        without("(:while_cancelling OR state <> 'cancelling')", "(:while_cancelling OR true)"),
        tests=("test_nothing_is_sent_while_a_cancel_is_pending",),
    ),
    Break(
        rules("dispatch"),
        "the permit is granted in spite of a hold",
        "nodesmith.store.operations.permits:_PERMIT",
        without("(:on_node OR NOT EXISTS (SELECT FROM hold))", "(:on_node OR true)"),
        tests=("test_hold_stops_what_is_not_on_its_node",),
    ),
    Break(
        rules("dispatch"),
        "taking a mark back forgets the decisions before it",
        "nodesmith.store.operations.permits:_WITHDRAW",
        without("SET sent = :decision - 1", "SET sent = 0"),
        tests=("test_withdrawn_second_decision_leaves_the_first_one_sent",),
    ),
    Break(
        rules("dispatch"),
        "a mark is never taken back",
        "nodesmith.store.operations.permits:_WITHDRAW",
        without("op_id = :op_id", "op_id = :op_id || '-'"),
        tests=("test_withdrawn_mark_leaves_nothing_sent",),
    ),
    Break(
        rules("dispatch"),
        "a request joins what is being cancelled",
        "nodesmith.services.operations.operation_lock:OperationLock._is_closing",
        _only_what_has_ended_is_closing,
        tests=("test_request_during_a_cancel_does_not_join_what_is_being_cancelled",),
    ),
    Break(
        rules("batches"),
        "a member without a row is not cancelled with its batch",
        "nodesmith.activities.batches:BatchActivities.cancel_members",
        _cancel_who_has_a_row,
        tests=("test_members_without_a_row_are_cancelled_with_their_batch",),
        waits=True,
    ),
)

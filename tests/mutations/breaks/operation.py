"""Breaks in the execution of an operation: its workflow, and the activities on its node."""

from typing import Any

from tests.mutations.arming import Break, names_of, rules

# the workflow


async def _end_without_node_at_once(_: Any, self: Any) -> None:
    await self._end_without_node()


async def _count_silence_as_a_failure(original: Any, self: Any) -> None:
    names = names_of(original)
    lost = names.Outcome(op_id=self._request.op_id, result=names.Result.FAILED, decision=self._run.decision)
    await self._back_off(names.Reason.NODE_ERROR, lost)


async def _try_for_ever(original: Any, self: Any, reason: Any, outcome: Any) -> None:
    self._policy = self._policy.model_copy(update={"max_attempts": 10**9})
    await original(self, reason, outcome)


async def _cancel_the_row_alone(_: Any, self: Any, request: Any) -> None:
    self._end(request)


async def _forget_the_cancel(original: Any, self: Any) -> Any:
    self._run.cancel = None
    return await original(self)


async def _die_with_the_worker(original: Any, self: Any) -> Any:
    result, dispatch = await original(self), names_of(original).names
    is_lost = isinstance(result, dispatch.Silent)
    return dispatch.Refused(why="the process that ran it has died") if is_lost else result


async def _write_sent_or_not(original: Any, self: Any, transitions: Any, activity_options: Any) -> Any:
    return await original(self, transitions.model_copy(update={"only_unsent": False}), activity_options)


# the activities


async def _drop_the_workers_words(original: Any, self: Any, reply: Any) -> Any:
    word = await original(self, reply)
    return word.model_copy(update={"outcome": word.outcome.model_copy(update={"error": "failed"})})


async def _call_refusals_a_success(original: Any, self: Any, reply: Any) -> Any:
    names = names_of(original)
    if self._wanted.kind is names.Kind.REMOVE:
        return self._ended(names.Result.SUCCEEDED, changed=False)
    return await original(self, reply)


async def _send_once(_: Any, self: Any) -> Any:
    return await self._sender.send(within=30)


async def _send_before_listening(original: Any, self: Any) -> Any:
    result = await self._attach()
    async with self._link.attach(self._node_id, self._op_id) as reports:
        while result is None and self._time_left() > 0:
            result = await self._listen(reports)
        return result or names_of(original).Silent(accepted=self._is_accepted())


def _drop_progress(original: Any, self: Any, progress: Any) -> None:
    original(self, progress)
    self.last_progress = None


async def _fail_without_nats(original: Any, self: Any) -> Any:
    from nodesmith.contracts.temporal.dispatch import NatsUnreachable, Refused

    result = await original(self)
    return Refused(why="NATS does not answer") if isinstance(result, NatsUnreachable) else result


def _blame_the_node(original: Any, self: Any, silence: Any) -> None:
    original(self, silence)
    self._link_is_down = False


_STILL_INSTALLING = ("test_no_answer_in_time_is_still_installing_and_never_an_attempt",)
_NO_WORKER_LIVES = ("test_a_cancel_sent_while_no_worker_lives_is_carried_out_by_the_next",)

_WORKFLOW = (
    Break(
        rules("S11"),
        "an operation that waits for its node ignores a cancel",
        "nodesmith.workflows.operation_waits:OperationWaits._is_woken",
        lambda _, self: self._run.node_heard,
        tests=("test_unsent_operation_is_cancelled_at_once",),
        waits=True,
    ),
    Break(
        rules("S27 S28 G5"),
        "an absent node ends the operation",
        "nodesmith.workflows.operation_waits:OperationWaits.wait_for_node",
        _end_without_node_at_once,
        tests=("test_an_absent_node_is_waited_for_and_its_return_wakes_the_operation",),
        waits=True,
    ),
    Break(
        rules("S38 S45 H21 H22 H26 G8"),
        "a timeout is a failed attempt",
        "nodesmith.workflows.backend_operation:BackendOperation._mark_unobserved",
        _count_silence_as_a_failure,
        tests=_STILL_INSTALLING,
        waits=True,
    ),
    Break(
        rules("S48"),
        "it is tried for ever",
        "nodesmith.workflows.backend_operation:BackendOperation._back_off",
        _try_for_ever,
        tests=("test_exhausted_attempts_end_as_a_dead_letter",),
        waits=True,
    ),
    Break(
        rules("G1"),
        "a cancel changes only the row",
        "nodesmith.workflows.cancellation:OperationCancel.carry_out",
        _cancel_the_row_alone,
        tests=("test_a_running_install_is_stopped_on_its_node_first",),
        waits=True,
    ),
    Break(
        rules("G3"),
        "a cancel after a lost dispatch is not sent to the node",
        "nodesmith.workflows.operation_record:OperationRecord._record",
        _write_sent_or_not,
        tests=("test_cancel.py::test_cancel_reaches_node_after_worker_crash_during_dispatch",),
        waits=True,
    ),
    Break(
        rules("S30 G3"),
        "a cancel from before the restart is forgotten",
        "nodesmith.workflows.backend_operation:BackendOperation._drive",
        _forget_the_cancel,
        tests=_NO_WORKER_LIVES,
        waits=True,
    ),
    Break(
        rules("S31 G4"),
        "an operation dies with the process that runs it",
        "nodesmith.workflows.node_session:NodeSession.read",
        _die_with_the_worker,
        tests=("test_install_survives_the_death_of_any_process",),
        limit_s=90,
    ),
)

_ACTIVITIES = (
    Break(
        rules("S7"),
        "the worker's words are dropped",
        "nodesmith.activities.localai:LocalaiWorker._failed",
        _drop_the_workers_words,
        tests=("test_refused_install_fails_with_the_error_of_the_worker",),
    ),
    Break(
        rules("S23"),
        "sent before anybody listens",
        "nodesmith.activities.follow_operation:OperationFollower.until_outcome",
        _send_before_listening,
        tests=("test_reports_sent_before_the_reply_are_received",),
    ),
    Break(
        rules("S37"),
        "a missing upgrade subject fails the operation",
        "nodesmith.activities.localai:LocalaiWorker._send",
        _send_once,
        tests=("test_a_worker_without_the_upgrade_subject_gets_an_install_with_force",),
    ),
    Break(
        rules("S40"),
        "progress is not received",
        "nodesmith.activities.follow_operation:OperationFollower._record_progress",
        _drop_progress,
        tests=("test_long_install_reports_its_start_and_progress",),
    ),
    Break(
        rules("S44 G7"),
        "a refused removal reads as a success",
        "nodesmith.activities.localai:LocalaiWorker._failed",
        _call_refusals_a_success,
        tests=("test_a_refused_removal_is_a_failure",),
    ),
    Break(
        rules("S57"),
        "an upgrade that is done is sent again",
        "nodesmith.activities.localai:LocalaiWorker._is_from_this_operation",
        lambda _, self, installed: False,
        tests=("test_an_upgrade_that_was_sent_before_is_not_sent_again_when_it_is_done",),
    ),
    Break(
        rules("H30"),
        "force is not passed on to the node",
        "nodesmith.contracts.nats.orders:Order.command",
        lambda original, *args, **rest: original(*args, **rest).model_copy(update={"force": False}),
        tests=("test_a_forced_reinstall_reinstalls",),
        limit_s=90,
    ),
    Break(
        rules("degraded"),
        "without NATS an operation fails",
        "nodesmith.activities.dispatch:Dispatcher.send",
        _fail_without_nats,
        tests=("test_operations_are_accepted_and_wait_during_a_nats_outage",),
        limit_s=90,
    ),
    Break(
        rules("degraded"),
        "without NATS every node is away",
        "nodesmith.activities.follow_operation:OperationFollower._schedule_retry",
        _blame_the_node,
        tests=("test_nats_outage_is_not_reported_as_absent_node",),
    ),
)

OPERATION = (*_WORKFLOW, *_ACTIVITIES)

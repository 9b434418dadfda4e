"""Breaks in what carries an operation out: its workflow, and the activities on its node."""

from typing import Any

from tests.breaking.arming import Break, names_of, rules

# the workflow


async def _give_up_at_once(_: Any, self: Any) -> None:
    await self._give_up()


async def _count_silence_as_a_failure(original: Any, self: Any) -> None:
    names = names_of(original)
    lost = names.Outcome(op_id=self._request.op_id, result=names.Result.FAILED, decision=self._now.decision)
    await self._back_off(names.Reason.NODE_ERROR, lost)


async def _try_for_ever(original: Any, self: Any, reason: Any, outcome: Any) -> None:
    self._policy = self._policy.model_copy(update={"max_attempts": 10**9})
    await original(self, reason, outcome)


async def _cancel_the_row_alone(_: Any, self: Any, request: Any) -> None:
    self._end(request)


async def _forget_the_cancel(original: Any, self: Any) -> Any:
    self._now.cancel = None
    return await original(self)


async def _die_with_the_worker(original: Any, self: Any) -> Any:
    result, dispatch = await original(self), names_of(original).names
    is_lost = isinstance(result, dispatch.Silent)
    return dispatch.Refused(why="the process that ran it has died") if is_lost else result


async def _write_sent_or_not(original: Any, self: Any, transitions: Any, how: Any) -> Any:
    return await original(self, transitions.model_copy(update={"only_unsent": False}), how)


# the activities


async def _drop_the_workers_words(original: Any, self: Any, reply: Any) -> Any:
    word = await original(self, reply)
    return word.model_copy(update={"outcome": word.outcome.model_copy(update={"error": "failed"})})


async def _call_refusals_a_success(original: Any, self: Any, reply: Any) -> Any:
    names = names_of(original)
    if self._command.kind is names.Kind.REMOVE:
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
    from contracts.dispatch import NatsUnreachable, Refused

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
        "who waits for a node does not hear a cancel",
        "workflows.backend_operation:BackendOperation._is_woken",
        lambda _, self: self._now.node_heard,
        tests=("test_what_never_reached_a_node_is_cancelled_at_once",),
        waits=True,
    ),
    Break(
        rules("S27 S28 G5"),
        "an absent node ends the operation",
        "workflows.backend_operation:BackendOperation._wait_for_node",
        _give_up_at_once,
        tests=("test_an_absent_node_is_waited_for_and_its_return_wakes_the_operation",),
        waits=True,
    ),
    Break(
        rules("S38 S45 H21 H22 H26 G8"),
        "a timeout is a failed attempt",
        "workflows.backend_operation:BackendOperation._mark_unobserved",
        _count_silence_as_a_failure,
        tests=_STILL_INSTALLING,
        waits=True,
    ),
    Break(
        rules("S48"),
        "it is tried for ever",
        "workflows.backend_operation:BackendOperation._back_off",
        _try_for_ever,
        tests=("test_exhausted_attempts_end_as_a_dead_letter",),
        waits=True,
    ),
    Break(
        rules("G1"),
        "a cancel changes only the row",
        "workflows.cancelling:Cancelling.carry_out",
        _cancel_the_row_alone,
        tests=("test_a_running_install_is_stopped_on_its_node_first",),
        waits=True,
    ),
    Break(
        rules("G3"),
        "a cancel after a lost dispatch is not told to the node",
        "workflows.ledger:Ledger._record",
        _write_sent_or_not,
        tests=("test_cancel.py::test_cancel_reaches_node_after_worker_crash_during_dispatch",),
        waits=True,
    ),
    Break(
        rules("S30 G3"),
        "a cancel from before the restart is forgotten",
        "workflows.backend_operation:BackendOperation._drive",
        _forget_the_cancel,
        tests=_NO_WORKER_LIVES,
        waits=True,
    ),
    Break(
        rules("S31 G4"),
        "an operation dies with the process that runs it",
        "workflows.node_session:NodeSession.read",
        _die_with_the_worker,
        tests=("test_any_one_process_may_die_in_the_middle",),
        limit_s=90,
    ),
)

_ACTIVITIES = (
    Break(
        rules("S7"),
        "the worker's words are dropped",
        "activities.localai:LocalaiWorker._failed",
        _drop_the_workers_words,
        tests=("test_a_refused_install_is_a_failure_with_the_workers_words",),
    ),
    Break(
        rules("S23"),
        "sent before anybody listens",
        "activities.following:Following.until_outcome",
        _send_before_listening,
        tests=("test_what_a_node_says_before_it_answers_is_heard",),
    ),
    Break(
        rules("S37"),
        "nobody on the upgrade subject is the end",
        "activities.localai:LocalaiWorker._send",
        _send_once,
        tests=("test_a_worker_without_the_upgrade_subject_gets_an_install_with_force",),
    ),
    Break(
        rules("S40"),
        "progress is not heard",
        "activities.following:Following._note",
        _drop_progress,
        tests=("test_a_lasting_install_is_announced_and_its_progress_heard",),
    ),
    Break(
        rules("S44 G7"),
        "a refused removal is told as a success",
        "activities.localai:LocalaiWorker._failed",
        _call_refusals_a_success,
        tests=("test_a_refused_removal_is_a_failure",),
    ),
    Break(
        rules("S57"),
        "an upgrade that is done is sent again",
        "activities.localai:LocalaiWorker._is_news",
        lambda _, self, present: False,
        tests=("test_an_upgrade_that_was_sent_before_is_not_sent_again_when_it_is_done",),
    ),
    Break(
        rules("H30"),
        "force is not passed on to the node",
        "activities.sending:command_of",
        lambda original, *args, **rest: original(*args, **rest).model_copy(update={"force": False}),
        tests=("test_a_forced_reinstall_reinstalls",),
        limit_s=90,
    ),
    Break(
        rules("degraded"),
        "without NATS an operation fails",
        "activities.dispatch:Dispatcher.send",
        _fail_without_nats,
        tests=("test_without_nats_operations_are_accepted_wait_with_a_reason_and_go_on",),
        limit_s=90,
    ),
    Break(
        rules("degraded"),
        "without NATS every node is away",
        "activities.following:Following._insist",
        _blame_the_node,
        tests=("test_without_nats_it_is_not_the_node_that_is_away",),
    ),
)

OPERATION = (*_WORKFLOW, *_ACTIVITIES)

"""Breaks in the agent, on the bus and in the contract between them."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.mutations.arming import Break, names_of, rules


async def _take_one_after_another(_: Any, bus: Any, subject: str, handler: Any) -> None:
    async def answer(message: Any) -> None:
        reply = await handler.reply_to(message)
        if message.reply and reply is not None:
            await bus.publish(message.reply, reply.encode())

    await bus.subscribe(subject.replace("upgrade", "install"), answer)


async def _acknowledge_the_unknown(original: Any, self: Any, command: Any) -> Any:
    names = names_of(original)
    if self._journal.get(command.op_id) is None:
        return names.CancelReply(op_id=command.op_id, answer=names.CancelAnswer.STOPPED)
    return await original(self, command)


async def _wait_for_a_turn(original: Any, bus: Any, subject: str, handler: Any) -> None:
    turn = bus.__dict__.setdefault("turn", asyncio.Lock())

    async def reply_to(message: Any) -> Any:
        async with turn:
            return await handler.reply_to(message)

    await original(bus, subject, SimpleNamespace(reply_to=reply_to))


async def _raise_the_clients_own_error(original: Any, *args: Any, **kwargs: Any) -> bytes:
    try:
        return bytes(await original(*args, **kwargs))
    except names_of(original).NoAnswer as error:
        raise (error.__cause__ or error) from None


async def _begin_silently_again(original: Any, self: Any, command: Any, known: Any) -> None:
    await _begun(original, self, command, known, is_silent=known is not None)


async def _upgrade_silently(original: Any, self: Any, command: Any, known: Any) -> None:
    await _begun(original, self, command, known, is_silent=command.kind == "upgrade")


async def _begun(original: Any, self: Any, command: Any, known: Any, *, is_silent: bool) -> None:
    async def silence(_: Any) -> None:
        """No progress is reported."""

    if is_silent:
        self._reporter = SimpleNamespace(progress=silence, outcome=self._reporter.outcome)
    await original(self, command, known)


def _stop_the_old_one_first(original: Any, kind: Any, policy: Any) -> Any:
    stop, steps = names_of(original).Step.STOP_OLD, original(kind, policy)
    return steps if stop in steps else (steps[0], stop, *steps[1:])


def _let_faults_through(original: Any, job: Any) -> Any:
    names = names_of(original)
    try:
        job.result()
    except (names.Stopped, asyncio.CancelledError, names.OperationFailed, OSError):
        return original(job)
    return original(job)


AGENT = (
    Break(
        rules("S22"),
        "an upgrade reports no progress",
        "nodesmith.agent.operations.commands:NodeOperations._begin",
        _upgrade_silently,
        tests=("test_upgrade_streams_its_progress",),
        limit_s=90,
    ),
    Break(
        rules("S24"),
        "progress has a subject of its own kind",
        "nodesmith.contracts.nats.subjects:progress",
        lambda original, *args: original(*args).replace("install", "upgrade"),
        tests=("test_every_kind_reports_on_the_subject_of_an_install",),
    ),
    Break(
        rules("S25 G9"),
        "a second try reports no progress",
        "nodesmith.agent.operations.commands:NodeOperations._begin",
        _begin_silently_again,
        tests=("test_a_second_try_reports_its_progress_as_the_first_did",),
    ),
    Break(
        rules("S35"),
        "an artifact on the disk is fetched again",
        "nodesmith.agent.operations.installer:Installer._is_installed",
        lambda _, self, installed, command, digest: False,
        tests=("test_installed_version_is_not_fetched_again",),
    ),
    Break(
        rules("S36"),
        "commands are taken one after another, on one subject",
        "nodesmith.bus.commands:serve_subject",
        _take_one_after_another,
        tests=("test_a_slow_upgrade_blocks_no_install",),
        waits=True,
    ),
    Break(
        rules("S39"),
        "a timeout of the bus is no timeout of ours",
        "nodesmith.bus.connection:Bus.request",
        _raise_the_clients_own_error,
        tests=("test_a_listener_that_does_not_answer_is_no_answer",),
    ),
    Break(
        rules("S41"),
        "stale progress counts",
        "nodesmith.bus.reports:ReportHub._is_newer",
        lambda _, self, key, progress: True,
        tests=("test_stale_progress_is_dropped",),
    ),
    Break(
        rules("S43"),
        "only a stop with a name is understood",
        "nodesmith.bus.commands:_read_stop",
        lambda original, payload: names_of(original).Command.decode(payload),
        tests=("test_stop_comes_with_or_without_a_name",),
        waits=True,
    ),
    Break(
        rules("S61"),
        "a fault in one handler ends the task of all",
        "nodesmith.agent.operations.journal_entries:outcome_of",
        _let_faults_through,
        tests=("test_an_operation_that_breaks_fails_alone",),
        waits=True,
    ),
    Break(
        rules("H40"),
        "an upgrade starts nothing again",
        "nodesmith.agent.run.backend_processes:wanted_after",
        lambda original, command, running: original(command, []),
        tests=("test_an_upgrade_restarts_the_same_set_and_a_rollback_too",),
    ),
    Break(
        rules("H40"),
        "an upgrade kills what runs at once",
        "nodesmith.agent.run.backend_processes:RunningProcesses.stop",
        lambda original, self, keepers, **rest: original(self, keepers, **{**rest, "grace": 0.0}),
        tests=("test_an_upgrade_lets_a_request_in_flight_finish",),
    ),
    Break(
        rules("H40"),
        "an overlapping upgrade stops the old process first",
        "nodesmith.agent.operations.change_plan:steps_of",
        _stop_the_old_one_first,
        tests=("test_the_old_process_ends_after_the_new_one_is_ready_or_before_it_starts",),
    ),
    Break(
        rules("H42"),
        "an install starts a process",
        "nodesmith.agent.run.backend_processes:wanted_after",
        lambda original, command, running: original(command.model_copy(update={"start": True}), running),
        tests=("test_an_install_starts_nothing_unless_it_is_asked_to",),
    ),
    Break(
        rules("limits"),
        "a cancel of an unknown operation leaves no tombstone",
        "nodesmith.agent.operations.commands:NodeOperations._write_tombstone",
        _acknowledge_the_unknown,
        tests=("test_tombstone_of_an_unknown_operation_is_written",),
    ),
    Break(
        rules("G2"),
        "a cancel waits behind the install",
        "nodesmith.bus.commands:serve_subject",
        _wait_for_a_turn,
        tests=("test_a_slow_command_blocks_no_cancel",),
        waits=True,
    ),
)

"""Handling of commands: begin, attach, repeat, refuse and cancel."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodesmith.agent.operations.commands import decide
from nodesmith.agent.operations.journal import JournalEntry, JournalStatus, MemoryJournal
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelAnswer,
    CancelCommand,
    CancelMode,
    Command,
    NodeOperationStatus,
    OpQuestion,
    Outcome,
    Result,
)
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.operations_bench import Bench, install
from tests.agent.waiting import until

LOWER, SAME, HIGHER = 4, 5, 6


def entry(standing: JournalStatus, result: Result | None = None) -> JournalEntry:
    outcome = Outcome(op_id="op", result=result) if result else None
    return JournalEntry(op_id="op", standing=standing, decision=SAME, outcome=outcome)


SUCCEEDED = entry(JournalStatus.ENDED, Result.SUCCEEDED)
FAILED = entry(JournalStatus.ENDED, Result.FAILED)
RUNNING = entry(JournalStatus.RUNNING)
INTERRUPTED = entry(JournalStatus.INTERRUPTED, Result.INTERRUPTED)
CANCELLED = entry(JournalStatus.CANCELLED, Result.CANCELLED)


@pytest.mark.parametrize(
    ("known", "decision", "holder", "answer"),
    [
        (None, 0, None, Answer.ACCEPTED),
        (None, 9, None, Answer.ACCEPTED),
        (None, 9, "other", Answer.BUSY),
        (RUNNING, LOWER, None, Answer.ATTACHED),
        (RUNNING, SAME, None, Answer.ATTACHED),
        (RUNNING, HIGHER, None, Answer.ATTACHED),
        (SUCCEEDED, LOWER, None, Answer.ENDED),
        (SUCCEEDED, SAME, None, Answer.ENDED),
        (SUCCEEDED, HIGHER, None, Answer.ENDED),
        (SUCCEEDED, HIGHER, "other", Answer.ENDED),
        (FAILED, LOWER, None, Answer.ENDED),
        (FAILED, SAME, None, Answer.ENDED),
        (FAILED, HIGHER, None, Answer.ACCEPTED),
        (FAILED, HIGHER, "other", Answer.BUSY),
        (INTERRUPTED, LOWER, None, Answer.ACCEPTED),
        (INTERRUPTED, SAME, None, Answer.ACCEPTED),
        (INTERRUPTED, HIGHER, None, Answer.ACCEPTED),
        (INTERRUPTED, SAME, "other", Answer.BUSY),
        (CANCELLED, LOWER, None, Answer.REFUSED),
        (CANCELLED, SAME, None, Answer.REFUSED),
        (CANCELLED, HIGHER, None, Answer.REFUSED),
        (CANCELLED, HIGHER, "other", Answer.REFUSED),
    ],
)
def test_the_decision_table(known, decision, holder, answer):
    assert decide(known, decision, holder) is answer


async def test_an_operation_that_breaks_fails_alone():
    """S61: a bug in the agent fails only the affected operation; the others continue."""
    bench = Bench()
    for op_id in ("broken", "other"):
        assert (await bench.send(install(op_id=op_id, family=op_id))).answer is Answer.ACCEPTED
    await bench.performer.finish("broken", "break")
    broken = await bench.reporter.ended("broken")
    assert (broken.result, broken.reason) == (Result.FAILED, Reason.NODE_ERROR)
    assert "a fault of the agent" in broken.error
    await bench.performer.finish("other", "succeed")
    assert (await bench.reporter.ended("other")).result is Result.SUCCEEDED
    assert (await bench.send(install(op_id="next", family="broken"))).answer is Answer.ACCEPTED
    await bench.performer.finish("next", "succeed")
    assert (await bench.reporter.ended("next")).result is Result.SUCCEEDED


async def test_a_repeated_command_attaches_to_the_work_in_progress():
    bench = Bench()
    replies = await asyncio.gather(*(bench.send(install()) for _ in range(20)))
    assert sorted(reply.answer for reply in replies) == [Answer.ACCEPTED] + [Answer.ATTACHED] * 19
    await bench.performer.finish("op", "succeed")
    assert (await bench.reporter.ended("op")).result is Result.SUCCEEDED
    assert bench.performer.begun == ["op"]


async def test_the_outcome_carries_the_newest_decision_and_an_older_command_attaches():
    bench = Bench()
    await bench.send(install(decision=1))
    assert (await bench.send(install(decision=3))).answer is Answer.ATTACHED
    assert (await bench.send(install(decision=2))).answer is Answer.ATTACHED
    await bench.performer.finish("op", "succeed")
    assert (await bench.reporter.ended("op")).decision == 3


async def test_outcome_of_an_ended_operation_is_repeated():
    bench = Bench()
    await bench.send(install())
    await bench.performer.finish("op", "succeed")
    outcome = await bench.reporter.ended("op")
    reply = await bench.send(install(decision=9))
    assert (reply.answer, reply.outcome) == (Answer.ENDED, outcome)
    assert bench.performer.begun == ["op"]


async def test_a_failed_operation_is_tried_again_for_a_newer_decision_only():
    bench = Bench()
    await bench.send(install(decision=1))
    await bench.performer.finish("op", "fail")
    failure = await bench.reporter.ended("op")
    assert (failure.result, failure.reason, failure.error) == (Result.FAILED, Reason.DOWNLOAD_FAILED, "as requested")
    assert (await bench.send(install(decision=1))).outcome == failure
    assert (await bench.send(install(decision=2))).answer is Answer.ACCEPTED
    await bench.performer.finish("op", "succeed")
    assert (await bench.reporter.ended("op", times=2)).decision == 2


async def test_one_operation_on_a_backend_and_others_beside_it():
    bench = Bench()
    await bench.send(install("one", family="echo"))
    busy = await bench.send(install("two", family="echo"))
    assert (busy.answer, busy.busy_op_id) == (Answer.BUSY, "one")
    assert (await bench.send(install("three", family="whisper"))).answer is Answer.ACCEPTED
    assert sorted(bench.operations.open_ops()) == ["one", "three"]
    await bench.performer.finish("one", "succeed")
    await bench.reporter.ended("one")
    assert (await bench.send(install("two", family="echo"))).answer is Answer.ACCEPTED
    await bench.operations.close()


@pytest.mark.parametrize("command", [Command(family="echo"), Command(op_id="op")])
async def test_a_command_without_identity_is_refused(command):
    reply = await Bench().send(command)
    assert (reply.answer, reply.reason) == (Answer.REFUSED, Reason.REFUSED_BY_NODE)


async def test_status_query_of_an_operation():
    bench = Bench()
    assert (await bench.operations.ask(OpQuestion(op_id="op"))).standing is NodeOperationStatus.UNKNOWN
    await bench.send(install(decision=7))
    running = await bench.operations.ask(OpQuestion(op_id="op"))
    assert (running.standing, running.decision) == (NodeOperationStatus.RUNNING, 7)
    assert running.progress is not None
    await bench.performer.finish("op", "succeed")
    outcome = await bench.reporter.ended("op")
    ended = await bench.operations.ask(OpQuestion(op_id="op"))
    assert (ended.standing, ended.outcome) == (NodeOperationStatus.ENDED, outcome)


# cancelling ---------------------------------------------------------------------------------------------------


async def test_a_cancel_stops_the_work_and_it_never_begins_again():
    bench = Bench()
    await bench.send(install())
    reply = await bench.operations.cancel(CancelCommand(op_id="op"))
    assert (reply.answer, bench.operations.open_ops()) == (CancelAnswer.STOPPED, [])
    assert bench.performer.discarded == ["op"]
    assert (await bench.reporter.ended("op")).result is Result.CANCELLED
    assert (await bench.send(install(decision=99))).answer is Answer.REFUSED
    asked = await bench.operations.ask(OpQuestion(op_id="op"))
    assert asked.outcome is not None
    assert (asked.standing, asked.outcome.result) == (NodeOperationStatus.ENDED, Result.CANCELLED)


async def test_keep_leaves_the_partial_download():
    bench = Bench()
    await bench.send(install())
    await bench.operations.cancel(CancelCommand(op_id="op", mode=CancelMode.KEEP))
    assert bench.performer.discarded == []


async def test_a_cancel_before_its_command_is_remembered():
    bench = Bench()
    assert (await bench.operations.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    assert (await bench.send(install(decision=99))).answer is Answer.REFUSED
    assert bench.performer.begun == []


async def test_a_cancel_after_the_end_comes_too_late():
    bench = Bench()
    await bench.send(install())
    await bench.performer.finish("op", "succeed")
    outcome = await bench.reporter.ended("op")
    reply = await bench.operations.cancel(CancelCommand(op_id="op"))
    assert (reply.answer, reply.outcome) == (CancelAnswer.TOO_LATE, outcome)


async def test_a_cancel_during_the_swap_waits_for_it_and_says_so():
    bench = Bench()
    await bench.send(install())
    await bench.performer.finish("op", "commit and wait")
    await until(lambda: "op" in bench.performer.commits)
    cancelling = asyncio.create_task(bench.operations.cancel(CancelCommand(op_id="op")))
    await asyncio.sleep(0)
    await bench.performer.finish("op", "go on")
    reply = await cancelling
    assert reply.outcome is not None
    assert (reply.answer, reply.outcome.result) == (CancelAnswer.TOO_LATE, Result.SUCCEEDED)


async def test_a_removal_that_runs_is_not_cancelled():
    bench = Bench()
    await bench.send(install(kind=Kind.REMOVE))
    cancelling = asyncio.create_task(bench.operations.cancel(CancelCommand(op_id="op")))
    await bench.performer.finish("op", "succeed")
    assert (await cancelling).answer is CancelAnswer.TOO_LATE


async def test_cancel_of_a_failed_operation_writes_a_tombstone():
    """Nothing runs, but without a tombstone a retry would start."""
    bench = Bench()
    await bench.send(install(decision=1))
    await bench.performer.finish("op", "fail")
    await bench.reporter.ended("op")
    assert (await bench.operations.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    assert (await bench.send(install(decision=2))).answer is Answer.REFUSED


async def test_many_cancels_at_once_are_all_acknowledged():
    bench = Bench()
    await bench.send(install())
    replies = await asyncio.gather(*(bench.operations.cancel(CancelCommand(op_id="op")) for _ in range(5)))
    assert {reply.answer for reply in replies} == {CancelAnswer.STOPPED}


class SlowJournal(MemoryJournal):
    """A journal whose writes complete when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.written: list[JournalStatus] = []

    async def put(self, entry: JournalEntry) -> None:
        await self.may_write.wait()
        await super().put(entry)
        self.written.append(entry.standing)


async def test_command_is_accepted_only_after_it_is_journaled():
    bench = Bench(journal := SlowJournal())
    accepting = asyncio.create_task(bench.send(install()))
    await asyncio.sleep(0.05)
    assert not accepting.done()
    assert bench.performer.begun == []
    journal.may_write.set()
    assert (await accepting).answer is Answer.ACCEPTED
    await bench.operations.close()


async def test_the_tombstone_is_written_before_the_acknowledgement():
    bench = Bench(journal := SlowJournal())
    journal.may_write.set()
    await bench.send(install())
    journal.may_write.clear()
    cancelling = asyncio.create_task(bench.operations.cancel(CancelCommand(op_id="op")))
    await asyncio.sleep(0.05)
    assert not cancelling.done()
    journal.may_write.set()
    assert (await cancelling).answer is CancelAnswer.STOPPED
    assert journal.written[:2] == [JournalStatus.RUNNING, JournalStatus.CANCELLED]


async def test_a_cancel_between_command_and_begin_wins():
    bench = Bench(journal := SlowJournal())
    accepting = asyncio.create_task(bench.send(install()))
    await asyncio.sleep(0)
    cancelling = asyncio.create_task(bench.operations.cancel(CancelCommand(op_id="op")))
    await asyncio.sleep(0)
    journal.may_write.set()
    await accepting
    assert (await cancelling).answer is CancelAnswer.STOPPED
    assert bench.performer.commits == set()
    assert bench.operations.open_ops() == []


class FullDisk(MemoryJournal):
    async def put(self, entry: JournalEntry) -> None:
        if entry.standing is JournalStatus.CANCELLED:
            raise OSError(28, "No space left on device")
        await super().put(entry)


async def test_a_tombstone_that_cannot_be_written_is_not_acknowledged():
    bench = Bench(FullDisk())
    await bench.send(install())
    reply = await bench.operations.cancel(CancelCommand(op_id="op"))
    assert reply.answer is CancelAnswer.UNKNOWN
    assert "No space left" in reply.error
    assert bench.operations.open_ops() == []


# shutdown -----------------------------------------------------------------------------------------------------


async def test_shutdown_interrupts_jobs_and_the_next_command_restarts_them():
    bench = Bench()
    await bench.send(install())
    await bench.operations.close()
    assert (await bench.reporter.ended("op")).result is Result.INTERRUPTED
    assert await bench.operations.command(install()) is None  # no answer from one who leaves
    again = Bench(bench.journal)
    assert (await again.operations.ask(OpQuestion(op_id="op"))).standing is NodeOperationStatus.INTERRUPTED
    assert (await again.send(install())).answer is Answer.ACCEPTED
    await again.operations.close()


async def test_shutdown_waits_for_a_swap():
    bench = Bench()
    await bench.send(install())
    await bench.performer.finish("op", "commit and wait")
    await until(lambda: "op" in bench.performer.commits)
    leaving = asyncio.create_task(bench.operations.close())
    await asyncio.sleep(0)
    await bench.performer.finish("op", "go on")
    await leaving
    assert (await bench.reporter.ended("op")).result is Result.SUCCEEDED


# random sequences ---------------------------------------------------------------------------------------------

OPS = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("command"), OPS, st.integers(1, 4)),
    st.tuples(st.sampled_from(["succeed", "fail", "cancel", "restart"]), OPS, st.just(0)),
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(STEPS, max_size=25))
def test_rules_hold_for_any_sequence_of_events(steps):
    """Two families (a and b share one): one job each, none after a cancel, a failed one only by a newer decision."""
    asyncio.run(_live_through(steps))


async def _live_through(steps: list[tuple[str, str, int]]) -> None:
    bench, buried, failed_at = Bench(), set[str](), dict[str, int]()
    for act, op_id, decision in steps:
        begun = len(bench.performer.begun)
        match act:
            case "command":
                reply = await bench.send(install(op_id, family="f" if op_id in "ab" else "g", decision=decision))
                if reply.answer in (Answer.ACCEPTED, Answer.ATTACHED):
                    assert op_id not in buried
                if reply.answer is Answer.ACCEPTED:
                    assert decision > failed_at.pop(op_id, 0)
                for _ in range(5):
                    await asyncio.sleep(0)
                assert len(bench.performer.begun) == begun + (reply.answer is Answer.ACCEPTED)
            case "cancel":
                cancelled = await bench.operations.cancel(CancelCommand(op_id=op_id))
                if cancelled.answer is CancelAnswer.STOPPED:
                    buried.add(op_id)
                assert op_id not in bench.operations.open_ops()
            case "restart":
                await bench.operations.close()
                bench = Bench(bench.journal)
            case word if op_id in bench.performer.working.values():
                ended = sum(outcome.op_id == op_id for outcome in bench.reporter.outcomes)
                await bench.performer.finish(op_id, word)
                failed_at[op_id] = (await bench.reporter.ended(op_id, times=ended + 1)).decision
    await bench.operations.close()

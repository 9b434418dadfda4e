"""A full disk: nothing unwritten is acknowledged, and the reserve lets plans, outcomes and tombstones be written."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.disk.reserve import SIZE, Reserve, ReservedDisk
from nodesmith.agent.operations import commands
from nodesmith.agent.operations.commands import NodeOperations
from nodesmith.agent.operations.journal import DiskJournal, JournalEntry, JournalStatus
from nodesmith.contracts.nats.messages import (
    Answer,
    CancelAnswer,
    CancelCommand,
    NodeOperationStatus,
    OpQuestion,
    Result,
)
from nodesmith.domain.kinds import Kind
from tests.agent.operations_bench import Bench, install
from tests.agent.waiting import until


class SmallDisk(Disk):
    """A disk that the test can make full or slow."""

    def __init__(self) -> None:
        self.is_full = False
        self.go_on = threading.Event()
        self.go_on.set()

    def write(self, path: Path, content: bytes, mode: int) -> None:
        self.go_on.wait(30)
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(path, content, mode)


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk()


@pytest.fixture
async def bench(tmp_path: Path, disk: SmallDisk) -> AsyncIterator[Bench]:
    journal = DiskJournal(tmp_path / "journal", disk)
    journal.load()
    yield Bench(journal, journal_every=0.0)
    disk.go_on.set()
    journal.close()


def reopened(tmp_path: Path) -> DiskJournal:
    journal = DiskJournal(tmp_path / "journal")
    journal.load()
    journal.close()
    return journal


async def test_repeated_cancel_on_a_full_disk_is_never_acknowledged(bench: Bench, disk: SmallDisk, tmp_path: Path):
    await bench.send(install())
    disk.is_full = True
    for _ in range(3):
        reply = await bench.operations.cancel(CancelCommand(op_id="op"))
        assert (reply.answer, "No space left" in reply.error) == (CancelAnswer.UNKNOWN, True)
    unknown = await bench.operations.cancel(CancelCommand(op_id="unknown"))
    assert (unknown.answer, bool(unknown.error)) == (CancelAnswer.UNKNOWN, True)
    disk.is_full = False
    assert (await bench.operations.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    kept = reopened(tmp_path).get("op")
    assert kept is not None
    assert kept.standing is JournalStatus.CANCELLED


async def test_stopped_work_without_a_written_tombstone_is_not_reported_as_cancelled(bench: Bench, disk: SmallDisk):
    """The disk is slow, then full; the work has ended meanwhile, and the operation may begin again."""
    await bench.send(install())
    disk.go_on.clear()
    disk.is_full = True
    asyncio.get_running_loop().call_later(0.05, disk.go_on.set)
    reply = await bench.operations.cancel(CancelCommand(op_id="op"))  # claimed before the work has begun
    assert reply.answer is CancelAnswer.UNKNOWN
    assert (await bench.reporter.ended("op")).result is Result.INTERRUPTED
    assert (await bench.operations.ask(OpQuestion(op_id="op"))).standing is NodeOperationStatus.INTERRUPTED


async def test_tombstone_of_an_unknown_operation_is_written(bench: Bench, tmp_path: Path):
    """The command may still arrive after a restart of the agent."""
    assert (await bench.operations.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    again = Bench(reopened(tmp_path))
    assert (await again.send(install(decision=99))).answer is Answer.REFUSED
    assert again.performer.begun == []


async def test_command_does_not_begin_while_its_tombstone_is_being_written(bench: Bench, disk: SmallDisk):
    disk.go_on.clear()
    cancelling = asyncio.create_task(bench.operations.cancel(CancelCommand(op_id="op")))
    await asyncio.sleep(0)
    sending = asyncio.create_task(bench.send(install()))
    await asyncio.sleep(0)
    disk.go_on.set()
    assert (await cancelling).answer is CancelAnswer.STOPPED
    assert (await sending).answer is Answer.REFUSED
    assert (bench.performer.begun, bench.operations.open_ops()) == ([], [])


async def test_unwritten_entry_is_not_reported(bench: Bench, disk: SmallDisk):
    disk.go_on.clear()
    writing = asyncio.create_task(bench.journal.put(JournalEntry(op_id="op", standing=JournalStatus.CANCELLED)))
    await asyncio.sleep(0.05)
    assert bench.journal.get("op") is None
    disk.go_on.set()
    await writing
    assert bench.journal.get("op") is not None


async def test_concurrent_commands_begin_the_operation_once(bench: Bench, disk: SmallDisk):
    disk.go_on.clear()
    sending = [asyncio.create_task(bench.send(install())) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert (await bench.operations.ask(OpQuestion(op_id="op"))).standing is NodeOperationStatus.RUNNING
    assert not any(task.done() for task in sending), "accepted and attached only once it is written down"
    disk.go_on.set()
    answers = sorted([(await task).answer for task in sending])
    assert answers == [Answer.ACCEPTED, *[Answer.ATTACHED] * 4]
    await until(lambda: bench.performer.begun == ["op"])
    await bench.operations.close()


async def test_outcome_on_a_full_disk_is_reported_and_written_later(bench: Bench, disk: SmallDisk, tmp_path: Path):
    await bench.send(install())
    disk.is_full = True
    await bench.performer.finish("op", "fail")
    assert (await bench.reporter.ended("op")).result is Result.FAILED
    assert (await bench.operations.ask(OpQuestion(op_id="op"))).standing is NodeOperationStatus.ENDED
    assert isinstance(bench.journal, DiskJournal)
    with pytest.raises(OSError, match="No space"):
        await bench.journal.flush()
    disk.is_full = False
    await bench.journal.flush()
    kept = reopened(tmp_path).get("op")
    assert kept is not None
    assert kept.standing is JournalStatus.ENDED


# the reserve --------------------------------------------------------------------------------------------------


class DiskWithReserve(SmallDisk):
    """A disk that has space again once the reserve is released."""

    def __init__(self, reserve: Reserve) -> None:
        super().__init__()
        self._reserve = reserve

    def write(self, path: Path, content: bytes, mode: int) -> None:
        self.is_full = self._reserve.path.exists()
        super().write(path, content, mode)


async def test_reserve_is_released_for_a_tombstone_and_created_again(tmp_path: Path):
    reserve = Reserve(tmp_path)
    reserve.ensure()
    assert reserve.path.stat().st_size == SIZE == 1024 * 1024
    assert reserve.path.stat().st_blocks * 512 >= SIZE, "it really takes the room"
    journal = DiskJournal(tmp_path / "journal", ReservedDisk(DiskWithReserve(reserve), reserve))
    journal.load()
    operations = NodeOperations(journal, Bench().performer, Bench().reporter, progress_every=1.0)
    assert (await operations.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    assert not reserve.path.exists()
    reserve.ensure()
    assert reserve.path.stat().st_size == SIZE
    journal.close()


async def test_full_disk_without_a_reserve_is_reported(tmp_path: Path):
    reserve = Reserve(tmp_path)
    disk = SmallDisk()
    disk.is_full = True
    journal = DiskJournal(tmp_path / "journal", ReservedDisk(disk, reserve))
    journal.load()
    with pytest.raises(OSError, match="No space"):
        await journal.put(JournalEntry(op_id="op", standing=JournalStatus.CANCELLED))
    journal.close()


async def test_a_removal_that_is_interrupted_and_cancelled_is_left_undone(bench: Bench):
    """The cancel undoes an interrupted plan, also of kinds that cannot be stopped while they run."""
    await bench.send(install(kind=Kind.REMOVE))
    await bench.performer.finish("op", "fail")
    await bench.reporter.ended("op")
    assert (await bench.operations.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    assert bench.performer.abandoned == ["op"]


async def test_invented_cancels_do_not_fill_the_disk(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel is not signed, so whoever owns NATS can send any number of them for operations that never existed."""
    monkeypatch.setattr(commands, "MOST_UNKNOWN_CANCELLED", 3)
    replies = [await bench.operations.cancel(CancelCommand(op_id=f"invented-{number}")) for number in range(5)]
    assert [reply.answer for reply in replies[:3]] == [CancelAnswer.STOPPED] * 3
    assert all(reply.answer is CancelAnswer.UNKNOWN and "too many" in reply.error for reply in replies[3:])
    assert len(list((tmp_path / "journal").iterdir())) == 3
    repeated = await bench.operations.cancel(CancelCommand(op_id="invented-0"))
    assert repeated.answer is CancelAnswer.STOPPED
    await bench.operations.command(install("known"))
    assert (await bench.operations.cancel(CancelCommand(op_id="known"))).answer is CancelAnswer.STOPPED

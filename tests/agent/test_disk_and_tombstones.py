"""A full disk: nothing is acknowledged that is not on it, and a reserve keeps plans, ends and tombstones possible."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.durable import Disk
from agent.journal import DiskJournal, Entry, Standing
from agent.operations import Operations
from agent.reserve import SIZE, Reserve, VitalDisk
from contracts.messages import Answer, CancelAnswer, CancelCommand, OpQuestion, OpStanding, Result
from domain.operation import Kind
from tests.agent.desks import Bench, install
from tests.agent.waiting import until


class SmallDisk(Disk):
    """Full when the test says so; slow when it says so."""

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


async def test_a_cancel_on_a_full_disk_is_never_acknowledged_however_often_it_is_asked(
    bench: Bench, disk: SmallDisk, tmp_path: Path
):
    await bench.send(install())
    disk.is_full = True
    for _ in range(3):
        reply = await bench.desk.cancel(CancelCommand(op_id="op"))
        assert (reply.answer, "No space left" in reply.error) == (CancelAnswer.UNKNOWN, True)
    unheard = await bench.desk.cancel(CancelCommand(op_id="never heard of"))
    assert (unheard.answer, bool(unheard.error)) == (CancelAnswer.UNKNOWN, True)
    disk.is_full = False
    assert (await bench.desk.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    kept = reopened(tmp_path).get("op")
    assert kept is not None
    assert kept.standing is Standing.CANCELLED


async def test_work_that_stops_before_its_tombstone_is_written_is_not_told_as_cancelled(bench: Bench, disk: SmallDisk):
    """The disk is slow, then full: the work has ended meanwhile, and the operation may still begin again."""
    await bench.send(install())
    disk.go_on.clear()
    disk.is_full = True
    asyncio.get_running_loop().call_later(0.05, disk.go_on.set)
    reply = await bench.desk.cancel(CancelCommand(op_id="op"))  # claimed before the work has begun
    assert reply.answer is CancelAnswer.UNKNOWN
    assert (await bench.notes.ended("op")).result is Result.INTERRUPTED
    assert (await bench.desk.ask(OpQuestion(op_id="op"))).standing is OpStanding.INTERRUPTED


async def test_the_tombstone_of_an_operation_that_nobody_knows_is_on_the_disk(bench: Bench, tmp_path: Path):
    """The command may still be on its way, and reach the next life of this agent."""
    assert (await bench.desk.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    again = Bench(reopened(tmp_path))
    assert (await again.send(install(decision=99))).answer is Answer.REFUSED
    assert again.hands.begun == []


async def test_a_command_that_overtakes_a_tombstone_on_its_way_to_the_disk_does_not_begin(
    bench: Bench, disk: SmallDisk
):
    disk.go_on.clear()
    cancelling = asyncio.create_task(bench.desk.cancel(CancelCommand(op_id="op")))
    await asyncio.sleep(0)
    sending = asyncio.create_task(bench.send(install()))
    await asyncio.sleep(0)
    disk.go_on.set()
    assert (await cancelling).answer is CancelAnswer.STOPPED
    assert (await sending).answer is Answer.REFUSED
    assert (bench.hands.begun, bench.desk.open_ops()) == ([], [])


async def test_what_is_not_on_the_disk_yet_is_not_told_as_known(bench: Bench, disk: SmallDisk):
    disk.go_on.clear()
    writing = asyncio.create_task(bench.journal.put(Entry(op_id="op", standing=Standing.CANCELLED)))
    await asyncio.sleep(0.05)
    assert bench.journal.get("op") is None
    disk.go_on.set()
    await writing
    assert bench.journal.get("op") is not None


async def test_of_many_commands_while_the_first_is_written_one_begins(bench: Bench, disk: SmallDisk):
    disk.go_on.clear()
    sending = [asyncio.create_task(bench.send(install())) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert (await bench.desk.ask(OpQuestion(op_id="op"))).standing is OpStanding.RUNNING
    assert not any(task.done() for task in sending), "accepted and attached only once it is written down"
    disk.go_on.set()
    answers = sorted([(await task).answer for task in sending])
    assert answers == [Answer.ACCEPTED, *[Answer.ATTACHED] * 4]
    await until(lambda: bench.hands.begun == ["op"])
    await bench.desk.close()


async def test_an_end_that_the_disk_does_not_take_is_told_all_the_same_and_written_later(
    bench: Bench, disk: SmallDisk, tmp_path: Path
):
    await bench.send(install())
    disk.is_full = True
    await bench.hands.tell("op", "fail")
    assert (await bench.notes.ended("op")).result is Result.FAILED
    assert (await bench.desk.ask(OpQuestion(op_id="op"))).standing is OpStanding.ENDED
    assert isinstance(bench.journal, DiskJournal)
    with pytest.raises(OSError, match="No space"):
        await bench.journal.flush()
    disk.is_full = False
    await bench.journal.flush()
    kept = reopened(tmp_path).get("op")
    assert kept is not None
    assert kept.standing is Standing.ENDED


# the reserve --------------------------------------------------------------------------------------------------


class DiskWithReserve(SmallDisk):
    """Has room again as soon as the reserve is given up."""

    def __init__(self, reserve: Reserve) -> None:
        super().__init__()
        self._reserve = reserve

    def write(self, path: Path, content: bytes, mode: int) -> None:
        self.is_full = self._reserve.path.exists()
        super().write(path, content, mode)


async def test_the_reserve_is_given_up_for_a_tombstone_and_made_again(tmp_path: Path):
    reserve = Reserve(tmp_path)
    reserve.make()
    assert reserve.path.stat().st_size == SIZE == 1024 * 1024
    assert reserve.path.stat().st_blocks * 512 >= SIZE, "it really takes the room"
    journal = DiskJournal(tmp_path / "journal", VitalDisk(DiskWithReserve(reserve), reserve))
    journal.load()
    desk = Operations(journal, Bench().hands, Bench().notes, progress_every=1.0)
    assert (await desk.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    assert not reserve.path.exists()
    reserve.make()
    assert reserve.path.stat().st_size == SIZE
    journal.close()


async def test_without_a_reserve_a_full_disk_is_told(tmp_path: Path):
    reserve = Reserve(tmp_path)
    disk = SmallDisk()
    disk.is_full = True
    journal = DiskJournal(tmp_path / "journal", VitalDisk(disk, reserve))
    journal.load()
    with pytest.raises(OSError, match="No space"):
        await journal.put(Entry(op_id="op", standing=Standing.CANCELLED))
    journal.close()


async def test_a_removal_that_is_interrupted_and_cancelled_is_left_undone(bench: Bench):
    """What an interrupted plan has left is undone with the tombstone, also of kinds that are never stopped."""
    await bench.send(install(kind=Kind.REMOVE))
    await bench.hands.tell("op", "fail")
    await bench.notes.ended("op")
    assert (await bench.desk.cancel(CancelCommand(op_id="op"))).answer is CancelAnswer.STOPPED
    assert bench.hands.abandoned == ["op"]

"""How far an operation is, as the journal is told."""

import asyncio
import time

from agent.journal import Entry, MemoryJournal, Standing
from contracts.messages import Outcome, Result
from domain.operation import Phase
from tests.agent.desks import Bench, install
from tests.agent.waiting import until


class CountingJournal(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[Entry] = []

    async def put(self, entry: Entry) -> None:
        self.written.append(entry)
        await super().put(entry)


async def test_phase_and_bytes_are_written_down_seldom_and_only_when_they_change():
    journal, every = CountingJournal(), 0.05
    bench = Bench(journal, journal_every=every)
    await bench.send(install())
    await until(lambda: "op" in bench.hands.jobs)
    gauge, began = bench.hands.jobs["op"].gauge, time.monotonic()
    for number in range(1, 301):
        gauge.move(Phase.DOWNLOADING, number, 300)
        await asyncio.sleep(0.001)
    await until(lambda: journal.written[-1].bytes_done == 300)
    assert len(journal.written) <= 2 + (time.monotonic() - began) / every
    noted = journal.written[-1]
    assert (noted.standing, noted.phase, noted.bytes_total) == (Standing.RUNNING, Phase.DOWNLOADING, 300)
    quiet = len(journal.written)
    await asyncio.sleep(3 * every)
    assert len(journal.written) == quiet, "nothing has changed"
    await bench.hands.tell("op", "done")
    await bench.notes.ended("op")
    assert (journal.written[-1].standing, journal.written[-1].bytes_done) == (Standing.ENDED, 300)


async def test_a_note_is_never_written_over_a_tombstone():
    """The job is claimed by a cancel, still ends its last step, and moves its gauge meanwhile."""
    journal = CountingJournal()
    bench = Bench(journal, journal_every=0.01)
    await bench.send(install())
    await until(lambda: "op" in bench.hands.jobs)
    await journal.put(
        Entry(op_id="op", standing=Standing.CANCELLED, outcome=Outcome(op_id="op", result=Result.CANCELLED))
    )
    bench.hands.jobs["op"].gauge.move(Phase.EXTRACTING, 7, 9)
    await asyncio.sleep(0.1)
    assert (journal.written[-1].standing, journal.written[-1].bytes_done) == (Standing.CANCELLED, 0)
    await bench.hands.tell("op", "done")
    await bench.notes.ended("op")

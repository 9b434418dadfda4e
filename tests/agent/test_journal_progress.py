"""Progress of an operation in the journal."""

import asyncio
import time

from nodesmith.agent.operations.journal import JournalEntry, JournalStatus, MemoryJournal
from nodesmith.contracts.nats.messages import Outcome, Result
from nodesmith.domain.operation import Phase
from tests.agent.operations_bench import Bench, install
from tests.agent.waiting import until


class CountingJournal(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[JournalEntry] = []

    async def put(self, entry: JournalEntry) -> None:
        self.written.append(entry)
        await super().put(entry)


async def test_progress_is_journaled_rarely_and_only_on_change():
    journal, every = CountingJournal(), 0.05
    bench = Bench(journal, journal_every=every)
    await bench.send(install())
    await until(lambda: "op" in bench.performer.jobs)
    gauge, began = bench.performer.jobs["op"].gauge, time.monotonic()
    for number in range(1, 301):
        gauge.move(Phase.DOWNLOADING, number, 300)
        await asyncio.sleep(0.001)
    await until(lambda: journal.written[-1].bytes_done == 300)
    assert len(journal.written) <= 2 + (time.monotonic() - began) / every
    noted = journal.written[-1]
    assert (noted.standing, noted.phase, noted.bytes_total) == (JournalStatus.RUNNING, Phase.DOWNLOADING, 300)
    quiet = len(journal.written)
    await asyncio.sleep(3 * every)
    assert len(journal.written) == quiet, "nothing has changed"
    await bench.performer.finish("op", "done")
    await bench.reporter.ended("op")
    assert (journal.written[-1].standing, journal.written[-1].bytes_done) == (JournalStatus.ENDED, 300)


async def test_progress_never_overwrites_a_tombstone():
    """A cancel has claimed the job, which still finishes its last step and reports progress."""
    journal = CountingJournal()
    bench = Bench(journal, journal_every=0.01)
    await bench.send(install())
    await until(lambda: "op" in bench.performer.jobs)
    await journal.put(
        JournalEntry(op_id="op", standing=JournalStatus.CANCELLED, outcome=Outcome(op_id="op", result=Result.CANCELLED))
    )
    bench.performer.jobs["op"].gauge.move(Phase.EXTRACTING, 7, 9)
    await asyncio.sleep(0.1)
    assert (journal.written[-1].standing, journal.written[-1].bytes_done) == (JournalStatus.CANCELLED, 0)
    await bench.performer.finish("op", "done")
    await bench.reporter.ended("op")

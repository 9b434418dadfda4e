"""Progress reports: rate-limited, monotonic, below 100 % until the end."""

import asyncio

import pytest

from nodesmith.agent.operations.progress import Gauge, human_size
from nodesmith.contracts.nats.messages import Command, Progress
from nodesmith.domain.operation import Phase

NEVER = 3600.0


class RecordedProgress:
    def __init__(self) -> None:
        self.ticks: list[Progress] = []
        self.news = asyncio.Event()

    async def publish(self, progress: Progress) -> None:
        self.ticks.append(progress)
        self.news.set()

    async def next(self) -> Progress:
        await asyncio.wait_for(self.news.wait(), 10)
        self.news.clear()
        return self.ticks[-1]


@pytest.fixture
async def published():
    return RecordedProgress()


def gauge(published: RecordedProgress, *, every: float, size: int = 1000) -> Gauge:
    return Gauge(Command(op_id="op", decision=5, size=size, uri="/a/echo-1.tar.gz"), published.publish, every=every)


async def test_first_change_is_published_at_once_and_later_ones_are_rate_limited(published):
    meter = gauge(published, every=NEVER)
    meter.move(Phase.DOWNLOADING, 1)
    first = await published.next()
    for done in range(2, 500):
        meter.move(Phase.DOWNLOADING, done)
    await asyncio.sleep(0.05)
    assert published.ticks == [first]
    await meter.close()
    assert [tick.bytes_done for tick in published.ticks] == [1, 499]


async def test_latest_change_is_published_at_the_end_of_the_interval(published):
    meter = gauge(published, every=0.05)
    meter.move(Phase.DOWNLOADING, 1)
    await published.next()
    meter.move(Phase.DOWNLOADING, 2)
    meter.move(Phase.DOWNLOADING, 3)
    assert (await published.next()).bytes_done == 3
    await meter.close()


async def test_close_publishes_nothing_twice(published):
    meter = gauge(published, every=NEVER)
    meter.move(Phase.DOWNLOADING, 1)
    await published.next()
    await meter.close()
    assert len(published.ticks) == 1


async def test_progress_is_monotonic_and_below_100_percent(published):
    meter = gauge(published, every=NEVER)
    meter.move(Phase.DOWNLOADING, 600)
    meter.move(Phase.DOWNLOADING, 10)
    assert meter.now().bytes_done == 600
    meter.move(Phase.DOWNLOADING, 1000)
    meter.move(Phase.SWAPPING)
    now = meter.now()
    assert (now.phase, now.percentage, now.bytes_done) == (Phase.SWAPPING, 99.0, 1000)
    await meter.close()


async def test_sequence_numbers_rise_across_a_restart(published):
    """Readers drop reports that are not newer, and a restarted agent uses the same decision."""
    first = gauge(published, every=0)
    first.move(Phase.DOWNLOADING, 1)
    before = (await published.next()).seq
    await first.close()
    await asyncio.sleep(0.01)
    second = gauge(published, every=0)
    second.move(Phase.DOWNLOADING, 1)
    assert (await published.next()).seq > before
    await second.close()


async def test_rate_and_time_left_follow_the_bytes(published):
    meter = gauge(published, every=NEVER, size=10_000_000)
    meter.move(Phase.DOWNLOADING, 0)
    assert (meter.now().rate, meter.now().eta_s) == (0.0, None)
    await asyncio.sleep(0.02)
    meter.move(Phase.DOWNLOADING, 1_000_000)
    now = meter.now()
    assert 0 < now.rate <= 1_000_000 / 0.02
    assert now.eta_s == pytest.approx(9_000_000 / now.rate, rel=0.1, abs=0.1)
    await meter.close()


async def test_an_unknown_size_gives_no_percentage(published):
    meter = gauge(published, every=NEVER, size=0)
    meter.move(Phase.DOWNLOADING, 500)
    assert (meter.now().percentage, meter.now().bytes_done, meter.now().eta_s) == (0.0, 500, None)
    await meter.close()


@pytest.mark.parametrize(("size", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 1024**3, "5.0 GiB")])
def test_sizes_are_written_as_localai_does(size, words):
    assert human_size(size) == words

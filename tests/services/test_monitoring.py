"""When the fleet monitor is started, replaced or left running, and which ticks count."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from nodesmith.activities.fleet_monitor import FleetActivities
from nodesmith.contracts.temporal.operations import FLEET_MONITOR_ID, FleetWatch, Run
from nodesmith.domain.errors import NodesmithError, ServiceUnavailable
from nodesmith.domain.monitor import MonitorTick
from nodesmith.services.operations.monitor_guard import MIN_TICKS, MonitorGuard, check_monitor, longest_silence

SILENCE = timedelta(minutes=2)


class SimulatedMonitor:
    """A simulated run with its ticks, and the clock of the guard."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.tick: MonitorTick | None = None
        self.error: NodesmithError | None = None
        self.now = 0.0
        self.done: list[str] = []

    def open(self, run_id: str) -> None:
        self.run = Run(workflow_id=FLEET_MONITOR_ID, run_id=run_id, is_open=True)

    def ticked(self, run_id: str, *, age: timedelta = timedelta()) -> None:
        self.tick = MonitorTick(run_id, datetime.fromtimestamp(self.now, UTC), age)

    async def find(self) -> Run | None:
        if self.error is not None:
            raise self.error
        return self.run

    async def last(self) -> MonitorTick | None:
        return self.tick

    async def write(self, run_id: str) -> None:
        self.done.append(f"ticked {run_id}")

    async def start(self, watch: FleetWatch) -> None:
        self.done.append("started")
        self.open(f"run-{len(self.done)}")

    async def terminate(self, run_id: str, reason: str) -> None:
        self.done.append(f"terminated {run_id}")


@pytest.fixture
def monitor() -> SimulatedMonitor:
    return SimulatedMonitor()


@pytest.fixture
def guard(monitor: SimulatedMonitor) -> MonitorGuard:
    return MonitorGuard(monitor, monitor, FleetWatch(), SILENCE, clock=lambda: monitor.now)


async def look(guard: MonitorGuard, monitor: SimulatedMonitor, *, after: float) -> list[str]:
    monitor.now += after
    await guard.once()
    done, monitor.done = monitor.done, []
    return done


async def test_monitor_that_was_never_started_is_started(guard: MonitorGuard, monitor: SimulatedMonitor) -> None:
    assert await look(guard, monitor, after=0) == ["started"]
    assert await look(guard, monitor, after=15) == []


async def test_closed_monitor_is_started_at_the_next_check(guard: MonitorGuard, monitor: SimulatedMonitor) -> None:
    monitor.run = Run(workflow_id=FLEET_MONITOR_ID, run_id="a", is_open=False)
    monitor.ticked("a")
    assert await look(guard, monitor, after=0) == ["started"]


async def test_monitor_that_ticks_is_left_alone(guard: MonitorGuard, monitor: SimulatedMonitor) -> None:
    monitor.open("a")
    for _ in range(20):
        monitor.ticked("a")
        assert await look(guard, monitor, after=60) == []


async def test_open_monitor_is_replaced_after_the_silence(guard: MonitorGuard, monitor: SimulatedMonitor) -> None:
    monitor.open("a")
    assert await look(guard, monitor, after=0) == []
    assert await look(guard, monitor, after=120) == []
    assert await look(guard, monitor, after=1) == ["terminated a", "started"]
    assert await look(guard, monitor, after=60) == [], "the new run has its own two minutes"


async def test_tick_of_an_earlier_run_does_not_hide_that_this_one_is_silent(
    guard: MonitorGuard, monitor: SimulatedMonitor
) -> None:
    monitor.open("b")
    for _ in range(3):
        monitor.ticked("a")
        assert await look(guard, monitor, after=60) == []
    assert await look(guard, monitor, after=60) == ["terminated b", "started"]


async def test_failed_checks_do_not_count_as_monitor_silence(guard: MonitorGuard, monitor: SimulatedMonitor) -> None:
    """PostgreSQL or Temporal was unavailable, so the monitor could not tick either."""
    monitor.open("a")
    await look(guard, monitor, after=0)
    monitor.error = ServiceUnavailable()
    with pytest.raises(ServiceUnavailable):
        await look(guard, monitor, after=600)
    monitor.error = None
    assert await look(guard, monitor, after=1) == []


def test_silence_is_four_ticks_at_least() -> None:
    assert MIN_TICKS == 4
    assert longest_silence(SILENCE, timedelta(seconds=15)) == SILENCE
    assert longest_silence(SILENCE, timedelta(minutes=10)) == timedelta(minutes=40)


async def test_check_names_a_monitor_that_is_closed_or_silent(monitor: SimulatedMonitor) -> None:
    with pytest.raises(ServiceUnavailable, match="does not run"):
        await check_monitor(monitor, monitor, SILENCE)
    monitor.open("a")
    with pytest.raises(ServiceUnavailable, match="not completed a tick"):
        await check_monitor(monitor, monitor, SILENCE)
    monitor.ticked("a", age=SILENCE)
    await check_monitor(monitor, monitor, SILENCE)


class Duties:
    """Repair, lifecycle and retention in one; the repair can be made to fail."""

    def __init__(self, error: NodesmithError | None = None) -> None:
        self.repairs = 0
        self._error = error

    async def once(self) -> int:
        self.repairs += 1
        if self._error is not None:
            raise self._error
        return 0

    async def sweep(self) -> None:
        return


async def watched(duties: Any, monitor: SimulatedMonitor) -> None:
    brief = FleetWatch(tick=timedelta(milliseconds=1), rest=timedelta(milliseconds=1))
    batches: Any = Duties()
    fleet = FleetActivities(duties, batches, duties, duties, monitor)
    await ActivityEnvironment().run(fleet.watch_fleet, brief)


async def test_each_tick_repairs_and_is_written_when_it_is_complete(monitor: SimulatedMonitor) -> None:
    """S13: orphaned operations end without an operator."""
    duties = Duties()
    await watched(duties, monitor)
    assert duties.repairs == len(monitor.done) > 0


async def test_tick_that_could_not_repair_is_not_written(monitor: SimulatedMonitor) -> None:
    duties = Duties(ServiceUnavailable())
    await watched(duties, monitor)
    assert (duties.repairs > 0, monitor.done) == (True, [])

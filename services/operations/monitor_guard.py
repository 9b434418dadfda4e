"""Keeps a monitor running: starts it when no run is open, replaces an open run that completes no ticks."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from nodesmith.contracts.temporal.operations import FleetWatch, Run
from nodesmith.domain.errors import NodesmithError, ServiceUnavailable
from nodesmith.domain.monitor import MonitorTick
from nodesmith.services.ports import MonitorRuns, MonitorTicks

log = structlog.stdlib.get_logger(__name__)

MIN_TICKS = 4
"""the limit is never shorter than this number of ticks"""
FLEET_MONITOR = "fleet monitor"
MODEL_SCHEDULER = "model scheduler"


def not_open(name: str) -> str:
    return f"The {name} does not run"


def silent(name: str) -> str:
    return f"The {name} has not completed a tick"


def longest_silence(silence: timedelta, tick: timedelta) -> timedelta:
    """How long an open monitor may go without completing a tick."""
    return max(silence, MIN_TICKS * tick)


@dataclass
class MonitorGuard:
    """Runs in every worker. Concurrent guards are safe: a run is terminated by its run id and started only once."""

    ticks: MonitorTicks
    runs: MonitorRuns
    watch: FleetWatch
    silence: timedelta
    clock: Callable[[], float] = time.monotonic
    name: str = FLEET_MONITOR
    _seen: tuple[str, datetime | None] | None = field(default=None, init=False)
    """run and last tick, as they were at `_since`"""
    _since: float = field(default=0.0, init=False)

    async def once(self) -> None:
        """Check once and act; a failed check proves no silence, so it resets the timer."""
        try:
            run, tick = await self.runs.find(), await self.ticks.last()
            if run is None or not run.is_open:
                await self._start(not_open(self.name))
            elif self._is_silent(run, tick):
                await self.runs.terminate(run.run_id, f"{silent(self.name)} for {self._limit.total_seconds():.0f} s.")
                await self._start(silent(self.name))
        except NodesmithError:
            self._seen = None
            raise

    @property
    def _limit(self) -> timedelta:
        return longest_silence(self.silence, self.watch.tick)

    async def _start(self, why: str) -> None:
        log.warning("monitor started", monitor=self.name, reason=why)
        self._seen = None
        await self.runs.start(self.watch)

    def _is_silent(self, run: Run, tick: MonitorTick | None) -> bool:
        """Whether the run has exceeded the limit; ticks of earlier runs do not count."""
        seen, now = (run.run_id, tick.at if tick and tick.run_id == run.run_id else None), self.clock()
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > self._limit.total_seconds()


async def check_monitor(ticks: MonitorTicks, runs: MonitorRuns, silence: timedelta, name: str = FLEET_MONITOR) -> None:
    """Raise `ServiceUnavailable` unless the monitor is open and has completed a tick recently."""
    run, tick = await runs.find(), await ticks.last()
    if run is None or not run.is_open:
        raise ServiceUnavailable(f"{not_open(name)}.")
    if tick is None or tick.age > silence:
        raise ServiceUnavailable(f"{silent(name)} recently.")

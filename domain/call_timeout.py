"""A timeout shared by concurrent calls to one server: a server that answers some of them is busy, not down."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_LATE_FRACTION = 0.1
"""a timer that fires later than this fraction of `silence_s` shows that this process was suspended"""


@dataclass(eq=False)
class _Wait:
    """One pending call."""

    timeout: asyncio.Timeout
    silent_at: float
    latest: float
    timer: asyncio.TimerHandle = field(init=False)


class SharedTimeout:
    """Cancels calls when none of them got an answer for `silence_s`; each answer extends all pending calls.

    Time during which this process was suspended does not count, because the answer may have arrived meanwhile.
    """

    def __init__(self, *, silence_s: float, longest_s: float) -> None:
        self._silence_s = silence_s
        self._longest_s = longest_s
        self._waiting: set[_Wait] = set()
        self._last_extended = 0.0

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """Raise TimeoutError in the block when the server is silent; `answered` extends the time."""
        now = asyncio.get_running_loop().time()
        async with asyncio.timeout(None) as timeout:
            wait = _Wait(timeout, silent_at=now + self._silence_s, latest=now + self._longest_s)
            self._arm(wait)
            self._waiting.add(wait)
            try:
                yield
            finally:
                self._waiting.remove(wait)
                wait.timer.cancel()

    def answered(self) -> None:
        """Extend all pending calls; rate-limited, because calls and answers may be hundreds."""
        now = asyncio.get_running_loop().time()
        if now < self._last_extended + self._silence_s / 10:
            return
        self._last_extended = now
        for wait in self._waiting:
            wait.silent_at = now + self._silence_s

    def _arm(self, wait: _Wait) -> None:
        at = min(wait.silent_at, wait.latest)
        wait.timer = asyncio.get_running_loop().call_at(at, self._on_timer, wait, at)

    def _on_timer(self, wait: _Wait, planned: float) -> None:
        now = asyncio.get_running_loop().time()
        if (late := now - planned) > _LATE_FRACTION * self._silence_s:
            wait.silent_at, wait.latest = now + self._silence_s, wait.latest + late
            wait.latest = max(wait.latest, now + _LATE_FRACTION * self._silence_s)
        if now < min(wait.silent_at, wait.latest):
            self._arm(wait)
        elif not wait.timeout.expired():
            wait.timeout.reschedule(now)

"""How long to wait for a server that many ask at once: one that answers others is busy, not away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_LATE = 0.1
"""a timer that fires later than this part of the silence tells that our own process stood still"""


@dataclass(eq=False)
class _Wait:
    """One call that waits."""

    timeout: asyncio.Timeout
    silent_at: float
    latest: float
    timer: asyncio.TimerHandle = field(init=False)


class Patience:
    """A call is given up when nobody has had an answer for a while; each answer gives all of them new time.

    Time in which our own process stood still counts for nobody: the answer may have come meanwhile.
    """

    def __init__(self, *, silence_s: float, longest_s: float) -> None:
        self._silence_s = silence_s
        self._longest_s = longest_s
        self._waiting: set[_Wait] = set()
        self._told = 0.0

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """TimeoutError when the server is silent; `answered` tells that it is not."""
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
        """Said now and then to those who wait: they may be hundreds, and so may the answers."""
        now = asyncio.get_running_loop().time()
        if now < self._told + self._silence_s / 10:
            return
        self._told = now
        for wait in self._waiting:
            wait.silent_at = now + self._silence_s

    def _arm(self, wait: _Wait) -> None:
        at = min(wait.silent_at, wait.latest)
        wait.timer = asyncio.get_running_loop().call_at(at, self._fired, wait, at)

    def _fired(self, wait: _Wait, planned: float) -> None:
        now = asyncio.get_running_loop().time()
        if (late := now - planned) > _LATE * self._silence_s:
            wait.silent_at, wait.latest = now + self._silence_s, wait.latest + late
            wait.latest = max(wait.latest, now + _LATE * self._silence_s)
        if now < min(wait.silent_at, wait.latest):
            self._arm(wait)
        elif not wait.timeout.expired():
            wait.timeout.reschedule(now)

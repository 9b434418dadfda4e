"""How long to wait for a server that many ask at once: one that answers others is busy, not away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Patience:
    """A call is given up when nobody has had an answer for a while; each answer gives all of them new time."""

    def __init__(self, *, silence_s: float, longest_s: float) -> None:
        self._silence_s = silence_s
        self._longest_s = longest_s
        self._waiting: dict[asyncio.Timeout, float] = {}
        self._told = 0.0

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """TimeoutError when the server is silent; `answered` tells that it is not."""
        async with asyncio.timeout(self._silence_s) as limit:
            self._waiting[limit] = asyncio.get_running_loop().time() + self._longest_s
            try:
                yield
            finally:
                del self._waiting[limit]

    def answered(self) -> None:
        """Said now and then to those who wait: they may be hundreds, and so may the answers."""
        now = asyncio.get_running_loop().time()
        if now < self._told + self._silence_s / 10:
            return
        self._told, silent_at = now, now + self._silence_s
        for limit, latest in self._waiting.items():
            if not limit.expired():
                limit.reschedule(min(silent_at, latest))

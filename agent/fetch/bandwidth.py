"""Bandwidth limit shared by all downloads of this agent."""

import asyncio
import time

_MAX_SLEEP_S = 0.25


class BandwidthLimit:
    """Throttles downloads to `bytes_a_second`; 0 is no limit."""

    def __init__(self, bytes_a_second: int) -> None:
        self._limit = bytes_a_second
        self._free_at = 0.0

    async def throttle(self, size: int) -> None:
        """Delay the caller for `size` received bytes."""
        if not self._limit:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._limit
        while (wait := self._free_at - time.monotonic()) > 0:
            await asyncio.sleep(min(wait, _MAX_SLEEP_S))
            if wait <= _MAX_SLEEP_S:
                return

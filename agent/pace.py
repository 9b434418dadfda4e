"""The bandwidth limit: all downloads of this agent together."""

import asyncio
import time

_LONGEST_NAP_S = 0.25


class Pace:
    """Lets `take` return when so many bytes may have passed; 0 is no limit."""

    def __init__(self, bytes_a_second: int) -> None:
        self._limit = bytes_a_second
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Wait for the turn of `size` bytes that have just come."""
        if not self._limit:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._limit
        while (wait := self._free_at - time.monotonic()) > 0:
            await asyncio.sleep(min(wait, _LONGEST_NAP_S))
            if wait <= _LONGEST_NAP_S:
                return

"""The worker forgets holders that are silent, and goes on if PostgreSQL does not answer."""

import asyncio
from collections.abc import Sequence

from nodesmith.domain.errors import ServiceUnavailable
from nodesmith.workers.silent_holders import EVERY_S, HolderCleanup
from tests.deadlines import HANGS_S


class Holders:
    def __init__(self) -> None:
        self.asked = 0
        self.twice = asyncio.Event()

    async def delete_silent(self) -> Sequence[str]:
        self.asked += 1
        if self.asked == 1:
            raise ServiceUnavailable("PostgreSQL does not answer.")
        self.twice.set()
        return ["gateway-1"]


async def test_cleanup_continues_after_an_outage() -> None:
    holders = Holders()
    running = asyncio.create_task(HolderCleanup(holders, every_s=0.01).run())
    await asyncio.wait_for(holders.twice.wait(), HANGS_S)
    running.cancel()
    await asyncio.wait([running])


def test_calls_of_a_killed_gateway_count_for_15_seconds_at_most() -> None:
    assert EVERY_S == 5.0

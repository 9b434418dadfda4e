"""Keeps the node's trust list current while it runs, so that a revoked key is refused soon."""

import asyncio
import random

import structlog

from nodesmith.agent.link.pinned_trust import PinnedTrust
from nodesmith.runtime.trust_lists import NotTrusted

log = structlog.stdlib.get_logger(__name__)

COOLDOWN_S = 10.0
"""minimum between two requests: a forged notification costs the control plane one small response in this time"""
SPREAD_S = 3.0
"""the whole fleet is notified at once and spreads its requests over this time"""


class TrustWatch:
    """Requests newer trust lists from the API on notification and every `every_s` seconds.

    Anyone who controls NATS can drop or forge a notification. Neither changes what is trusted: the lists come over
    HTTP and are verified against the pinned list.
    """

    def __init__(
        self, trust: PinnedTrust, *, every_s: float, cooldown_s: float | None = None, spread_s: float | None = None
    ) -> None:
        self._trust = trust
        self._every_s = every_s
        self._cooldown_s = COOLDOWN_S if cooldown_s is None else cooldown_s
        self._spread_s = SPREAD_S if spread_s is None else spread_s
        self._notified = asyncio.Event()

    def notify(self) -> None:
        """Signal that a newer list may exist."""
        self._notified.set()

    async def run(self) -> None:
        """Refresh until cancelled."""
        while True:
            await self._wait_until_notified_or_due()
            await asyncio.sleep(random.uniform(0.0, self._spread_s))  # noqa: S311 - jitter, no secret
            self._notified.clear()
            await self._refresh()
            await asyncio.sleep(self._cooldown_s)

    async def _wait_until_notified_or_due(self) -> None:
        try:
            async with asyncio.timeout(self._every_s * random.uniform(0.9, 1.0)):  # noqa: S311 - jitter, no secret
                await self._notified.wait()
        except TimeoutError:
            return

    async def _refresh(self) -> None:
        """Refresh once; if the control plane is unreachable or the disk is full, the next round retries."""
        try:
            await self._trust.refresh()
        except (NotTrusted, OSError) as error:
            log.warning("trust.refresh_failed", error=str(error))

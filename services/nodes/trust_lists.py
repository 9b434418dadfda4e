"""Distributes trust lists: tells connected nodes with an older list to fetch the newest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.trust_lists import OutdatedNodes

log = structlog.stdlib.get_logger(__name__)

CONNECTED_WITHIN = timedelta(minutes=1)
"""a node that was silent for longer registers when it returns, and gets the list then"""
MAX_NOTIFIED = 10_000
MAX_NAMES = 5


class Trusted(Protocol):
    """The control plane's own trust list."""

    @property
    def version(self) -> int: ...


class Versions(Protocol):
    """The versions of the trust list that the nodes reported."""

    async def behind(self, version: int, *, named: int) -> OutdatedNodes: ...
    async def reachable(self, version: int, *, heard_since: datetime, limit: int) -> Sequence[str]: ...


class TrustMessages(Protocol):
    """NATS; returns False when our own connection is down."""

    async def announce_trust_list(self, node_id: str) -> bool: ...


@dataclass(frozen=True)
class TrustListNotifier:
    """Tells nodes that a newer list exists. They fetch it from the API and verify it; the message carries no trust."""

    trusted: Trusted
    versions: Versions
    messages: TrustMessages
    clock: Callable[[], datetime]

    async def once(self) -> int:
        """Notify nodes with an older list; returns how many. Every replica runs it; concurrent runs are safe."""
        since = self.clock() - CONNECTED_WITHIN
        behind = await self.versions.reachable(self.trusted.version, heard_since=since, limit=MAX_NOTIFIED)
        notified = 0
        for node_id in behind:
            if not await self.messages.announce_trust_list(node_id):
                break
            notified += 1
        return notified

    async def notify_now(self) -> None:
        """Notify right after a rotation; the periodic run repeats what fails within half a minute."""
        try:
            await self.once()
        except NodesmithError as error:
            log.warning("trust.not_notified", error=error.message)

    async def behind(self) -> OutdatedNodes:
        return await self.versions.behind(self.trusted.version, named=MAX_NAMES)

"""Health of the servers: checked on demand by /readyz, and remembered so that lists can say that they are stale."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog

from nodesmith.contracts.http.shared import Readiness
from nodesmith.domain.errors import NodesmithError
from nodesmith.store.clock import Clock, utc_now

log = structlog.stdlib.get_logger(__name__)

CHECK_LIMIT_S = 2.0
CHECK_EVERY_S = 5.0

TEMPORAL = "temporal"
FLEET_MONITOR = "fleet_monitor"


@dataclass(frozen=True)
class Check:
    """How to check one server, and what its absence means."""

    ask: Callable[[], Awaitable[None]]
    """raises a `NodesmithError` if the server does not answer"""
    without_it: str
    is_needed: bool = True
    """false: without this server the API is ready but degraded"""


class Health:
    """The servers that this process depends on."""

    def __init__(self, checks: Mapping[str, Check], *, clock: Clock = utc_now) -> None:
        self._checks = checks
        self._clock = clock
        self._down_since: dict[str, datetime] = {}

    async def readiness(self) -> Readiness:
        """Check all servers concurrently, each within the time limit."""
        checks = {name: asyncio.ensure_future(check.ask()) for name, check in self._checks.items()}
        await asyncio.wait(checks.values(), timeout=CHECK_LIMIT_S)
        away = {name: self._complaint(name) for name, asking in checks.items() if not _answered(name, asking)}
        self._remember(set(away))
        missing = {name: complaint for name, complaint in away.items() if self._checks[name].is_needed}
        degraded = {name: complaint for name, complaint in away.items() if name not in missing}
        return Readiness(ready=not missing, missing=missing, degraded=degraded)

    def down_since(self, name: str) -> datetime | None:
        """Return since when a server has not answered, as far as this process has noticed."""
        return self._down_since.get(name)

    async def run(self) -> None:
        """Check periodically, so that a list can say since when it may be stale."""
        while True:
            await self.readiness()
            await asyncio.sleep(CHECK_EVERY_S)

    def _complaint(self, name: str) -> str:
        return self._checks[name].without_it

    def _remember(self, missing: set[str]) -> None:
        for name in missing - self._down_since.keys():
            log.warning("server.missing", server=name)
            self._down_since[name] = self._clock()
        for name in self._down_since.keys() - missing:
            log.info("server.back", server=name)
            del self._down_since[name]


def _answered(name: str, asking: "asyncio.Future[None]") -> bool:
    if not asking.done():
        asking.cancel()
        return False
    error = asking.exception()
    if error is not None and not isinstance(error, NodesmithError):
        # our own defect: log it, and go on with the other checks
        log.error("server.check_crashed", server=name, exc_info=error)
    return error is None

"""Keeps the routes fresh, and tells the store how many requests this gateway has in flight."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

import structlog

from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.routing import RouteSnapshot
from nodesmith.gateway.routes import RouteTable

log = structlog.stdlib.get_logger(__name__)

GATHER_S = 0.05
"""between two reads of the routes, so that changes that arrive together are read together"""
SYNC_S = 0.5
"""between two synchronisations"""
HEARTBEAT_S = 3.0
"""how often all counts are written; the store forgets a holder after 10 s of silence"""


class RouteStore(Protocol):
    async def read(self) -> RouteSnapshot: ...
    async def synchronise(self, holder_id: str, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Write absolute counts of this holder; return the totals of those replicas."""
        ...

    async def want(self, models: set[str]) -> None:
        """Tell the scheduler that requests wait for these models."""

    async def leave(self, holder_id: str) -> None:
        """Remove the counts of this holder."""

    def wakeups(self) -> AsyncGenerator[None]:
        """Yield when the routes may have changed: at once, on NOTIFY, after a reconnect, and every few seconds."""
        ...


class RouteFeed:
    """Runs until it is cancelled. While PostgreSQL is away, the last routes stay in use."""

    def __init__(
        self, store: RouteStore, routes: RouteTable, *, wanted: set[str] | None = None, holder_id: str = ""
    ) -> None:
        self._store = store
        self._routes = routes
        self.holder_id = holder_id or f"gateway-{secrets.token_hex(8)}"
        self._wanted = wanted if wanted is not None else set()
        """models for which calls wait; filled by the route table"""
        self._written_at = float("-inf")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            tasks.create_task(self._synchronise_for_ever())

    async def leave(self) -> None:
        """Give back what this gateway held; a killed one is forgotten after 10 s."""
        try:
            await self._store.leave(self.holder_id)
        except NodesmithError as error:
            log.warning("routes.not_left", error=error.message)

    async def _follow(self) -> None:
        async with aclosing(self._store.wakeups()) as wakeups:
            async for _ in wakeups:
                try:
                    self._routes.load(await self._store.read())
                except NodesmithError as error:
                    log.warning("routes.not_read", error=error.message)
                await asyncio.sleep(GATHER_S)

    async def _synchronise_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SYNC_S)
            try:
                await self.synchronise()
            except NodesmithError as error:
                log.warning("counts.not_written", error=error.message)

    async def synchronise(self) -> None:
        """Write the counts that changed; now and then all of them, so that the store does not forget us."""
        routes = self._routes
        is_due = asyncio.get_running_loop().time() - self._written_at > HEARTBEAT_S
        names = routes.changed | set(routes.synchronised) | set(routes.held) if is_due else set(routes.changed)
        if names or is_due:
            counts = routes.counts(names)
            routes.changed -= names
            await self._write(counts)
        if self._wanted:
            wanted = set(self._wanted)
            self._wanted.clear()
            await self._store.want(wanted)

    async def _write(self, counts: Mapping[str, int]) -> None:
        try:
            totals = await self._store.synchronise(self.holder_id, counts)
        except BaseException:
            self._routes.changed |= set(counts)
            raise
        self._written_at = asyncio.get_running_loop().time()
        self._routes.apply_totals(counts, totals)

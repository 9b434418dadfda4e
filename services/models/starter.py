"""Starts the loads and unloads that the scheduler has decided; runs in every API process, which can sign orders."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from nodesmith.domain.deployment import LoadSpec
from nodesmith.domain.errors import NodesmithError, ServiceUnavailable
from nodesmith.domain.replica import Replica
from nodesmith.services.models.ports import Loads, PlacementFeed, Replicas

log = structlog.stdlib.get_logger(__name__)

AT_ONCE = 20


@dataclass(frozen=True)
class ReplicaStarter:
    """Several at once do no harm: an operation that runs already is joined."""

    replicas: Replicas
    loads: Loads
    feed: PlacementFeed

    async def run(self) -> None:
        """Start what is placed, whenever rows change, until the process ends."""
        async with aclosing(self.feed.wakeups()) as wakeups:
            async for _ in wakeups:
                try:
                    await self.once()
                except NodesmithError as error:
                    log.info("replicas.not_started", error=error.message)

    async def once(self) -> int:
        """Start every load and unload that has no operation yet; returns how many."""
        waiting = await self.replicas.to_start()
        limit = asyncio.Semaphore(AT_ONCE)

        async def start(replica: Replica, spec: LoadSpec | None) -> None:
            async with limit:
                await self._start(replica, spec)

        await asyncio.gather(*(start(replica, spec) for replica, spec in waiting))
        return len(waiting)

    async def _start(self, replica: Replica, spec: LoadSpec | None) -> None:
        """Start one; a refusal is its end, and an unavailable server leaves it for the next time."""
        try:
            if spec is None:
                await self.loads.start_unload(replica)
            else:
                await self.loads.start_load(replica, spec)
                await self.replicas.loading(replica)
        except ServiceUnavailable as error:
            log.info("replica.not_started", replica=replica.key, error=error.message)
        except NodesmithError as error:
            log.warning("replica.refused", replica=replica.key, error=error.message)
            await self.replicas.failed(replica.op_id, error.message)

"""HTTP heartbeats of LocalAI workers: collected, and written once a second."""

import asyncio
from datetime import datetime, timedelta

import structlog

from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.node import Protocol
from nodesmith.store.clock import Clock, utc_now
from nodesmith.store.nodes.nodes import Nodes

log = structlog.stdlib.get_logger(__name__)

WRITE_EVERY_S = 1.0
TOUCH_EVERY = timedelta(seconds=5)


class HttpHeartbeats:
    """Holds the newest heartbeat of each node until it is written."""

    def __init__(self, nodes: Nodes, *, clock: Clock = utc_now, every_s: float = WRITE_EVERY_S) -> None:
        self._nodes = nodes
        self._clock = clock
        self._every_s = every_s
        self._gathered: dict[str, Heartbeat] = {}
        self._touched: datetime | None = None

    def add(self, heartbeat: Heartbeat) -> None:
        self._gathered[heartbeat.node_id] = heartbeat

    async def run(self) -> None:
        while True:
            try:
                await self._write()
            except NodesmithError as error:
                log.warning("heartbeats.not_written", nodes=len(self._gathered), error=error.message)
            await asyncio.sleep(self._every_s)

    async def _write(self) -> None:
        """Write also when there is no heartbeat: it shows that the API listens, so nodes are not marked as silent."""
        now = self._clock()
        if self._touched is None or now - self._touched >= TOUCH_EVERY:
            await self._nodes.touch_listening(now, protocol=Protocol.LOCALAI)
            self._touched = now
        batch = list(self._gathered.values())
        if batch:
            await self._nodes.heartbeats(batch, now, over_nats=False)
        for beat in batch:
            if self._gathered.get(beat.node_id) is beat:
                del self._gathered[beat.node_id]

"""Liveness: what a heartbeat changes. It refreshes the node, wakes what waits for it and stops what nobody wants."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from contracts.http import OperationView
from contracts.messages import CancelCommand, Heartbeat
from domain.errors import NoAnswer, NodeAway
from services.ports import NodeLink, NodeRegistry, OperationRuns, Operations

log = structlog.get_logger()

ANSWER_S = 5.0
WAKES_A_SECOND = 50
"""the rest follows with the next heartbeats: a fleet that comes back at once is no stampede"""


@dataclass(frozen=True)
class Liveness:
    nodes: NodeRegistry
    operations: Operations
    runs: OperationRuns
    link: NodeLink
    clock: Callable[[], datetime]

    async def heard(self, beats: Sequence[Heartbeat]) -> None:
        """One second's heartbeats."""
        now = self.clock()
        await self.nodes.touch_listening(now)
        if not beats:
            return
        await self.nodes.heartbeats(beats, now)
        await self._wake([beat.node_id for beat in beats])
        await self._stop_orphans(beats)

    async def _wake(self, node_ids: Sequence[str]) -> None:
        for row in (await self.operations.waiting_for(node_ids))[:WAKES_A_SECOND]:
            await self.runs.node_back(row.workflow_id, row.node_id)

    async def _stop_orphans(self, beats: Sequence[Heartbeat]) -> None:
        """An operation that is open on the node and ended here was cancelled or repaired while the node was away."""
        at_nodes = [op_id for beat in beats for op_id in beat.open_ops]
        if not at_nodes:
            return
        orphans = await self.operations.ended_among(at_nodes)
        await asyncio.gather(*(self._stop(row) for row in orphans))

    async def _stop(self, row: OperationView) -> None:
        log.warning("stopping an orphan", op_id=row.op_id, node=row.node_name, backend=row.backend)
        command = CancelCommand(op_id=row.op_id, family=row.family)
        try:
            await self.link.cancel(row.node_id, command, within=ANSWER_S)
        except (NodeAway, NoAnswer):
            log.info("orphan not reached; the next heartbeat asks again", op_id=row.op_id)

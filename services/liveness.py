"""Liveness: what a heartbeat changes. It refreshes the node, wakes what waits for it and stops what nobody wants."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from contracts.messages import CancelCommand, Heartbeat
from contracts.operation_http import OperationView
from contracts.temporal import Run
from domain.errors import NoAnswer, NodeAway, NodesmithError, ServiceUnavailable
from domain.node import HeardNode
from domain.operation import ENDED
from services.identity import Impostors
from services.ports import NodeLink, NodeRegistry, Operations

log = structlog.get_logger()

ANSWER_S = 5.0
WAKES_A_SECOND = 50
"""the rest follows in the next seconds: a fleet that comes back at once is no stampede"""


class Wakers(Protocol):
    """The runs of operations that wait for a node."""

    async def node_back(self, workflow_id: str, node_id: str) -> None: ...
    async def open_runs(self) -> Sequence[Run]: ...


@dataclass(frozen=True)
class Liveness:
    nodes: NodeRegistry
    operations: Operations
    runs: Wakers
    link: NodeLink
    impostors: Impostors
    clock: Callable[[], datetime]
    _to_wake: dict[str, OperationView] = field(default_factory=dict)
    _looking: "set[asyncio.Task[None]]" = field(default_factory=set)

    async def heard(self, beats: Sequence[Heartbeat]) -> None:
        """One second's heartbeats; called every second, also without any."""
        now = self.clock()
        await self.nodes.touch_listening(now)
        if beats:
            known = await self.nodes.heartbeats(beats, now)
            present = [node.node_id for node in known]
            self._to_wake.update({row.op_id: row for row in await self.operations.waiting_for(present)})
            self._look_after(beats, known, now)
        await self._wake()

    def _look_after(self, beats: Sequence[Heartbeat], known: Sequence[HeardNode], now: datetime) -> None:
        """What has to wait for a node's answer, beside the next seconds; what is missed is heard again soon."""
        if not self._looking:
            looking = asyncio.create_task(self._look(beats, known, now))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)

    async def _look(self, beats: Sequence[Heartbeat], known: Sequence[HeardNode], now: datetime) -> None:
        try:
            await self.impostors.answer(beats, known, now)
            await self._stop_orphans(beats)
        except NodesmithError as error:
            log.warning("heartbeats not looked into; the next ones are", error=str(error))

    async def _wake(self) -> None:
        """Oldest first. While Temporal is away nothing is lost: they stay on the list."""
        await asyncio.gather(*(self._wake_one(op_id) for op_id in list(self._to_wake)[:WAKES_A_SECOND]))

    async def _wake_one(self, op_id: str) -> None:
        row = self._to_wake[op_id]
        try:
            await self.runs.node_back(row.workflow_id, row.node_id)
        except ServiceUnavailable as error:
            log.info("not woken; the next second tries again", op_id=op_id, error=str(error))
        else:
            self._to_wake.pop(op_id, None)

    async def _stop_orphans(self, beats: Sequence[Heartbeat]) -> None:
        """Open on the node and ended here: cancelled or repaired while the node was away. Or known to nobody any more.

        A command goes out only when the row is there, so an operation without one was lost with an older copy of
        PostgreSQL; its run writes the row again, and without a run nothing is left to wait for it.
        """
        at_nodes = {op_id: beat.node_id for beat in beats for op_id in beat.open_ops}
        if not at_nodes:
            return
        standing = await self.operations.standing(list(at_nodes))
        orphans = {op_id for op_id, (state, _) in standing.items() if state in ENDED}
        orphans |= await self._without_run(at_nodes.keys() - standing.keys())
        await asyncio.gather(*(self._stop(at_nodes[op_id], op_id) for op_id in orphans))

    async def _without_run(self, op_ids: set[str]) -> set[str]:
        return op_ids - {run.op_id for run in await self.runs.open_runs()} if op_ids else set()

    async def _stop(self, node_id: str, op_id: str) -> None:
        log.warning("stopping an orphan", op_id=op_id, node_id=node_id)
        try:
            await self.link.cancel(node_id, CancelCommand(op_id=op_id), within=ANSWER_S)
        except (NodeAway, NoAnswer):
            log.info("orphan not reached; the next heartbeat asks again", op_id=op_id)

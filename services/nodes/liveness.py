"""Liveness: a heartbeat refreshes its node, wakes operations that wait for it, and stops orphaned operations."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from nodesmith.contracts.nats.messages import CancelAnswer, CancelCommand
from nodesmith.contracts.nats.presence import Heartbeat
from nodesmith.contracts.temporal.operations import Run
from nodesmith.domain.errors import NoAnswer, NodeAway, NodesmithError, ServiceUnavailable
from nodesmith.domain.node import ReportingNode
from nodesmith.domain.operation import ENDED, Operation
from nodesmith.domain.replica import ReplicaState
from nodesmith.services.models.ports import ReplicaRecords
from nodesmith.services.nodes.identity_claims import DuplicateIdentities
from nodesmith.services.ports import NodeLink, NodeRegistry, Operations

log = structlog.get_logger()

ANSWER_S = 5.0
REPEAT_REPORT = timedelta(minutes=1)
"""a list of replicas that did not change is recorded again, because rows may have changed meanwhile"""
WAKES_PER_SECOND = 50
"""the rest follows in the next seconds: limits the load when a whole fleet returns"""


class OperationWakers(Protocol):
    """The open runs of operations."""

    async def node_back(self, workflow_id: str, node_id: str) -> None: ...
    async def open_runs(self) -> Sequence[Run]: ...


class Inventories(Protocol):
    """Copies of the nodes' lists; a doubted copy is refreshed."""

    async def mark_stale(self, node_id: str) -> None: ...


@dataclass(frozen=True)
class Liveness:
    nodes: NodeRegistry
    operations: Operations
    runs: OperationWakers
    link: NodeLink
    duplicates: DuplicateIdentities
    inventories: Inventories
    clock: Callable[[], datetime]
    replicas: ReplicaRecords | None = None
    _to_wake: dict[str, Operation] = field(default_factory=dict)
    _checks: "set[asyncio.Task[None]]" = field(default_factory=set)
    _reported: dict[str, tuple[object, datetime]] = field(default_factory=dict)
    """node -> its last recorded list of replicas, and when it was recorded"""

    async def process(self, beats: Sequence[Heartbeat]) -> None:
        """Process the heartbeats of one second; called every second, also with none."""
        now = self.clock()
        await self.nodes.touch_listening(now)
        if beats:
            known = await self.nodes.heartbeats(beats, now)
            present = [node.node_id for node in known]
            await self._record_replicas(beats, set(present), now)
            self._to_wake.update({row.op_id: row for row in await self.operations.waiting_for(present)})
            self._check_in_background(beats, known, now)
        await self._wake()

    async def _record_replicas(self, beats: Sequence[Heartbeat], present: set[str], now: datetime) -> None:
        """Record what nodes report about their replicas: what changed at once, the rest once a minute."""
        for beat in beats:
            if self.replicas is None or beat.replicas is None or beat.node_id not in present:
                continue
            loaded = [each.reported() for each in beat.replicas if each.state is ReplicaState.LOADED]
            said = (beat.boot_id, loaded)
            earlier, at = self._reported.get(beat.node_id, (None, now))
            if said != earlier or now - at >= REPEAT_REPORT:
                await self.replicas.reported(beat.node_id, beat.boot_id, beat.number, loaded)
                self._reported[beat.node_id] = (said, now)

    def _check_in_background(self, beats: Sequence[Heartbeat], known: Sequence[ReportingNode], now: datetime) -> None:
        """Start the checks that wait for replies of nodes, in the background; skipped while the last ones still run."""
        if not self._checks:
            check = asyncio.create_task(self._check(beats, known, now))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, beats: Sequence[Heartbeat], known: Sequence[ReportingNode], now: datetime) -> None:
        try:
            await self.duplicates.answer(beats, known, now)
            await self._stop_orphans(beats)
        except NodesmithError as error:
            log.warning("heartbeats not looked into; the next ones are", error=str(error))

    async def _wake(self) -> None:
        """Wake the oldest first. While Temporal is unavailable, operations stay on the list."""
        await asyncio.gather(*(self._wake_one(op_id) for op_id in list(self._to_wake)[:WAKES_PER_SECOND]))

    async def _wake_one(self, op_id: str) -> None:
        row = self._to_wake[op_id]
        try:
            await self.runs.node_back(row.workflow_id, row.node_id)
        except ServiceUnavailable as error:
            log.info("not woken; the next second tries again", op_id=op_id, error=str(error))
        else:
            self._to_wake.pop(op_id, None)

    async def _stop_orphans(self, beats: Sequence[Heartbeat]) -> None:
        """Stop operations that are open on a node but have ended here, or have neither a row nor a run here.

        A command is sent only after its row exists, so a missing row means that PostgreSQL was restored from a backup.
        An open run writes its row again; without a run nothing waits for the operation.
        """
        claimed = {(beat.node_id, op_id) for beat in beats for op_id in beat.open_ops}
        if not claimed:
            return
        op_ids = {op_id for _, op_id in claimed}
        standing = await self.operations.states(list(op_ids))
        orphans = {op_id for op_id, (state, _) in standing.items() if state in ENDED}
        orphans |= await self._without_run(op_ids - standing.keys())
        await asyncio.gather(*(self._stop(node_id, op_id) for node_id, op_id in claimed if op_id in orphans))

    async def _without_run(self, op_ids: set[str]) -> set[str]:
        return op_ids - {run.op_id for run in await self.runs.open_runs()} if op_ids else set()

    async def _stop(self, node_id: str, op_id: str) -> None:
        log.warning("stopping an orphan", op_id=op_id, node_id=node_id)
        try:
            reply = await self.link.cancel(node_id, CancelCommand(op_id=op_id), within=ANSWER_S)
        except (NodeAway, NoAnswer):
            log.info("orphan not reached; the next heartbeat asks again", op_id=op_id)
            return
        if reply.answer is CancelAnswer.TOO_LATE:
            await self.inventories.mark_stale(node_id)

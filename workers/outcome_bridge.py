"""Passes outcomes that have no follower to workflows, and progress to the operation rows."""

import asyncio

import structlog

from nodesmith.contracts.nats.messages import Outcome, Progress, Result
from nodesmith.domain.errors import NodesmithError
from nodesmith.domain.operation import ENDED, State
from nodesmith.services.nodes.liveness import Inventories
from nodesmith.services.ports import OperationRuns, Operations

log = structlog.stdlib.get_logger(__name__)

UNATTENDED = frozenset({State.WAITING, State.STILL_INSTALLING, State.CANCELLING})
"""In the other open states some worker follows the operation and receives the outcome itself."""
MOST_QUEUED = 10_000


class OutcomeBridge:
    """Signals the run of an outcome without a follower, or marks the inventory as doubtful if the row has ended."""

    def __init__(self, operations: Operations, runs: OperationRuns, inventories: Inventories) -> None:
        self._operations = operations
        self._runs = runs
        self._inventories = inventories
        self._unclaimed: asyncio.Queue[Outcome] = asyncio.Queue(MOST_QUEUED)

    def take(self, outcome: Outcome) -> None:
        """Queue the outcome without blocking the bus; drop it if the queue is full: the next follower asks the node."""
        if not self._unclaimed.full():
            self._unclaimed.put_nowait(outcome)

    async def run(self) -> None:
        while True:
            outcome = await self._unclaimed.get()
            try:
                await self._report(outcome)
            except NodesmithError as error:
                log.warning(
                    "outcome not delivered; the next attach asks the node", op_id=outcome.op_id, error=str(error)
                )

    async def _report(self, outcome: Outcome) -> None:
        row = await self._operations.find(outcome.op_id)
        if row is None or row.node_id != outcome.node_id:
            return
        if row.state in UNATTENDED:
            await self._runs.report_outcome(row.workflow_id, outcome.op_id)
        elif row.state in ENDED and row.state is not State.SUCCEEDED and outcome.result is Result.SUCCEEDED:
            await self._inventories.mark_stale(row.node_id)  # the operation had ended without an outcome from the node


class Gauges:
    """Keeps the newest progress of each operation and writes it once a second, in one UPDATE."""

    def __init__(self, operations: Operations, *, every: float = 1.0) -> None:
        self._operations = operations
        self._every = every
        self._latest: dict[str, Progress] = {}

    def take(self, progress: Progress) -> None:
        self._latest[progress.op_id] = progress

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            ticks, self._latest = list(self._latest.values()), {}
            if not ticks:
                continue
            try:
                await self._operations.write_gauges(ticks)
            except NodesmithError as error:
                log.debug("gauges dropped", error=str(error))

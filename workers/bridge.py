"""The bridge from the bus to the runs and rows: outcomes nobody is attached to, and the gauges."""

import asyncio

import structlog

from contracts.messages import Outcome, Progress
from contracts.temporal import operation_workflow_id
from domain.errors import NodesmithError
from domain.operation import State
from services.ports import OperationRuns, Operations

log = structlog.stdlib.get_logger(__name__)

UNATTENDED = frozenset({State.WAITING, State.STILL_INSTALLING, State.CANCELLING})
"""In the other open states a worker is attached, here or elsewhere, and hears the outcome itself."""
MOST_QUEUED = 10_000


class OutcomeBridge:
    """Turns an outcome that arrives while nobody is attached into a signal."""

    def __init__(self, operations: Operations, runs: OperationRuns) -> None:
        self._operations = operations
        self._runs = runs
        self._unclaimed: asyncio.Queue[Outcome] = asyncio.Queue(MOST_QUEUED)

    def take(self, outcome: Outcome) -> None:
        """Never blocks the bus; what does not fit is asked for when somebody attaches."""
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
        if row is not None and row.node_id == outcome.node_id and row.state in UNATTENDED:
            await self._runs.report_outcome(operation_workflow_id(row.node_id, row.family), outcome.op_id)


class Gauges:
    """Keeps the newest progress of each operation and flushes it once a second, in one UPDATE."""

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

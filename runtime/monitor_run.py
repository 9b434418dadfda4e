"""The workflow run of a singleton in Temporal; implements `nodesmith.services.ports.MonitorRuns`."""

from dataclasses import dataclass

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from nodesmith.contracts.temporal import models
from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import FleetWatch, Run
from nodesmith.runtime.temporal import describe_run
from nodesmith.runtime.temporal_calls import Calls


@dataclass(frozen=True)
class Singleton:
    """A workflow of which one run is open."""

    workflow: str
    id: str
    summary: str


FLEET_MONITOR = Singleton(
    names.FLEET_MONITOR, names.FLEET_MONITOR_ID, "Wakes waiting operations, repairs rows, stops orphans"
)
MODEL_SCHEDULER = Singleton(
    models.MODEL_SCHEDULER, models.MODEL_SCHEDULER_ID, "Keeps every model between its minimum and its maximum"
)


class MonitorRun:
    def __init__(
        self, client: Client, singleton: Singleton = FLEET_MONITOR, *, queue: str = names.CONTROL_QUEUE
    ) -> None:
        self._client = client
        self._singleton = singleton
        self._queue = queue
        self._calls = Calls(client)

    async def find(self) -> Run | None:
        """Return the latest run; None if there was none."""
        async with self._calls.reading():
            return await describe_run(self._client, self._singleton.id)

    async def start(self, watch: FleetWatch) -> None:
        """Start it unless it is open."""
        async with self._calls.writing():
            await self._client.start_workflow(
                self._singleton.workflow,
                watch,
                id=self._singleton.id,
                task_queue=self._queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=self._singleton.summary,
            )

    async def terminate(self, run_id: str, reason: str) -> None:
        """Terminate that run; no effect if it has already ended."""
        try:
            async with self._calls.writing():
                await self._client.get_workflow_handle(self._singleton.id, run_id=run_id).terminate(reason)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

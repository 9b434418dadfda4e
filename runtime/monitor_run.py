"""The fleet monitor's workflow run in Temporal; implements `nodesmith.services.ports.MonitorRuns`."""

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from nodesmith.contracts.temporal import operations as names
from nodesmith.contracts.temporal.operations import FleetWatch, Run
from nodesmith.runtime.temporal import describe_run
from nodesmith.runtime.temporal_calls import Calls


class MonitorRun:
    def __init__(self, client: Client, *, queue: str = names.CONTROL_QUEUE) -> None:
        self._client = client
        self._queue = queue
        self._calls = Calls(client)

    async def find(self) -> Run | None:
        """Return the latest run; None if there was none."""
        async with self._calls.reading():
            return await describe_run(self._client, names.FLEET_MONITOR_ID)

    async def start(self, watch: FleetWatch) -> None:
        """Start the monitor unless it is open."""
        async with self._calls.writing():
            await self._client.start_workflow(
                names.FLEET_MONITOR,
                watch,
                id=names.FLEET_MONITOR_ID,
                task_queue=self._queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary="Wakes waiting operations, repairs rows, stops orphans",
            )

    async def terminate(self, run_id: str, reason: str) -> None:
        """Terminate that run; no effect if it has already ended."""
        try:
            async with self._calls.writing():
                await self._client.get_workflow_handle(names.FLEET_MONITOR_ID, run_id=run_id).terminate(reason)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

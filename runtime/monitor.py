"""The run of the fleet monitor in Temporal; satisfies `services.ports.MonitorRuns`."""

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from contracts import temporal as names
from contracts.temporal import FleetWatch, Run
from runtime.calls import Calls
from runtime.temporal import described


class MonitorRun:
    def __init__(self, client: Client, *, queue: str = names.CONTROL_QUEUE) -> None:
        self._client = client
        self._queue = queue
        self._calls = Calls(client)

    async def find(self) -> Run | None:
        """The latest run; None when there was none."""
        async with self._calls.reading():
            return await described(self._client, names.FLEET_MONITOR_ID)

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
        """End that run; one that has ended already stays as it is."""
        try:
            async with self._calls.writing():
                await self._client.get_workflow_handle(names.FLEET_MONITOR_ID, run_id=run_id).terminate(reason)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

"""Workers restart the fleet monitor when it was terminated or is silent."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio.client import Client, WorkflowExecutionStatus

from nodesmith.contracts.temporal.operations import FLEET_MONITOR, FLEET_MONITOR_ID, FleetWatch, operation_workflow_id
from nodesmith.domain.operation import Reason, State
from nodesmith.runtime.settings import ControlSettings
from nodesmith.store.database import Database
from nodesmith.store.operations.monitor_ticks import MonitorTicks
from nodesmith.store.operations.operations import OperationTable
from tests.fakes.operation_activities import deaf_run
from tests.servers import NatsForTests
from tests.store.transitions import a_request, transition
from tests.workers.conftest import running_worker

HANGS_S = 60


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(HANGS_S):
        while not await condition():  # noqa: ASYNC110 - another process, or another task, acts
            await asyncio.sleep(0.05)


async def running_operation(client: Client, operations: OperationTable) -> str:
    """An operation whose row and run are open."""
    request = a_request(node_id=f"node-{uuid.uuid4()}")
    workflow_id = operation_workflow_id(request.node_id, request.wanted.family)
    await deaf_run(client, workflow_id)
    await operations.record(transition(request, State.RUNNING))
    return request.op_id


async def ended_outside(operations: OperationTable, op_id: str) -> bool:
    row = await operations.find(op_id)
    assert row is not None
    return (row.state, row.reason) == (State.FAILED, Reason.ENDED_OUTSIDE)


async def test_terminated_monitor_is_started_again_and_repairs_without_worker_restart(
    client: Client, database: Database, worker: None
) -> None:
    operations, monitor = OperationTable(database), client.get_workflow_handle(FLEET_MONITOR_ID)
    await until(lambda: ticked_since(database, ""))
    op_id, terminated = await running_operation(client, operations), await monitor_run(client)
    await monitor.terminate("in the Web UI")
    await terminate_operation(client, operations, op_id)
    await until(lambda: ticked_since(database, terminated))
    await until(lambda: ended_outside(operations, op_id))


async def test_monitor_repairs_at_its_ticks(client: Client, database: Database, worker: None) -> None:
    operations = OperationTable(database)
    op_id = await running_operation(client, operations)
    await terminate_operation(client, operations, op_id)
    await until(lambda: ended_outside(operations, op_id))


async def terminate_operation(client: Client, operations: OperationTable, op_id: str) -> None:
    row = await operations.find(op_id)
    assert row is not None
    await client.get_workflow_handle(row.workflow_id).terminate("in the Web UI")


async def ticked_since(database: Database, run_id: str) -> bool:
    """Whether another run than that one has completed the last tick."""
    tick = await MonitorTicks(database).last()
    return tick is not None and tick.run_id != run_id


async def test_silent_monitor_is_terminated_and_replaced(
    settings: ControlSettings, client: Client, database: Database, nats_server: NatsForTests
) -> None:
    """The run is open in Temporal, but on a queue that no worker polls."""
    await client.start_workflow(FLEET_MONITOR, FleetWatch(), id=FLEET_MONITOR_ID, task_queue=f"nobody-{uuid.uuid4()}")
    silent = client.get_workflow_handle(FLEET_MONITOR_ID, run_id=(await monitor_run(client)))
    last = await MonitorTicks(database).last()
    async with running_worker(settings, client, database, nats_server):
        await until(lambda: ticked_since(database, last.run_id if last else ""))
        assert (await silent.describe()).status is WorkflowExecutionStatus.TERMINATED


async def monitor_run(client: Client) -> str:
    return (await client.get_workflow_handle(FLEET_MONITOR_ID).describe()).run_id


def test_workers_look_every_15_seconds_and_a_monitor_may_be_silent_for_2_minutes() -> None:
    settings = ControlSettings()
    assert settings.monitor_check == timedelta(seconds=15)
    assert settings.monitor_silence == timedelta(minutes=2)
    assert (FLEET_MONITOR, FLEET_MONITOR_ID) == ("FleetMonitor", "fleet-monitor")

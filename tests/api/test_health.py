"""What /readyz and the lists report about the servers."""

import asyncio

from temporalio.common import WorkflowIDConflictPolicy

from nodesmith.api.health import FLEET_MONITOR, Check, Health
from nodesmith.contracts.temporal.operations import FLEET_MONITOR_ID
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.temporal import connect
from nodesmith.store.operations.monitor_ticks import MonitorTicks
from tests.api.station import Api
from tests.databases import opened


async def _here() -> None:
    """Answer."""


async def _broken() -> None:
    raise ZeroDivisionError


async def test_check_that_crashes_counts_as_down_and_does_not_affect_others() -> None:
    health = Health({"one": Check(_broken, "One is away."), "other": Check(_here, "Other is away.")})
    readiness = await health.readiness()
    assert (readiness.ready, readiness.missing) == (False, {"one": "One is away."})
    assert health.down_since("one") is not None


async def test_health_checks_continue_after_a_check_crashed() -> None:
    asked = asyncio.Event()

    async def broken() -> None:
        asked.set()
        raise ZeroDivisionError

    asking = asyncio.create_task(Health({"one": Check(broken, "One is away.")}).run())
    await asked.wait()
    await asyncio.wait([asking], timeout=0.1)
    assert not asking.done()
    asking.cancel()


async def test_readiness_names_what_is_degraded_and_stays_ready() -> None:
    health = Health({"one": Check(_here, "One is away."), "other": Check(_broken, "Other is away.", is_needed=False)})
    readiness = await health.readiness()
    assert (readiness.ready, readiness.missing, readiness.degraded) == (True, {}, {"other": "Other is away."})


async def test_readyz_names_a_monitor_that_does_not_run_and_stays_200(api: Api, settings: ControlSettings) -> None:
    """No worker, so no monitor: whatever an earlier test has left open has completed no tick on this database."""
    answer = await api.http.get("/readyz")
    assert (answer.status_code, answer.json()["ready"], answer.json()["missing"]) == (200, True, {})
    assert "fleet monitor" in answer.json()["degraded"][FLEET_MONITOR]
    client = await connect(settings)
    await client.start_workflow(
        "FleetMonitor",
        id=FLEET_MONITOR_ID,
        task_queue="nobody",
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    async with opened(settings.database_url) as database:
        await MonitorTicks(database).write("run")
    answer = await api.http.get("/readyz")
    assert (answer.status_code, answer.json()["degraded"]) == (200, {})
    await client.get_workflow_handle(FLEET_MONITOR_ID).terminate("in the Web UI")
    answer = await api.http.get("/readyz")
    assert (answer.status_code, set(answer.json()["degraded"])) == (200, {FLEET_MONITOR})

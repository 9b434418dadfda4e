"""Measures how soon operations resume after a node's return and after a worker's kill: `make bench-liveness`."""

import asyncio
import os
import signal
import sys
import time
from datetime import UTC, datetime

from nats.aio.msg import Msg
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import Client

from benchmarks.running import run
from benchmarks.stage import Stage, p50, simulated, stage, verdict
from nodesmith.bus.connection import connect_control
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.contracts.nats import subjects
from nodesmith.contracts.temporal.operations import FLEET_MONITOR_ID
from nodesmith.domain.operation import State
from nodesmith.runtime.temporal import connect

NODES = 20
PREFIX = "back"
WOKEN_WITHIN_S = 2.0
RESUMED_WITHIN_S = 30.0
PATIENCE_S = 600.0
"""an operation or a monitor that has not resumed by then is stuck"""


async def state_of(on: Stage, op_id: str) -> State:
    return State((await on.http.get(f"/api/v1/operations/{op_id}")).json()["state"])


async def until_waiting(on: Stage, op_id: str) -> None:
    while await state_of(on, op_id) is not State.WAITING:
        await asyncio.sleep(0.2)


async def left_waiting_at(on: Stage, op_id: str) -> datetime:
    """Return when the operation last left the state `waiting`."""
    while await state_of(on, op_id) in (State.QUEUED, State.WAITING):
        await asyncio.sleep(0.2)
    timeline = (await on.http.get(f"/api/v1/operations/{op_id}")).json()["timeline"]
    last = max(number for number, event in enumerate(timeline) if event["state"] == State.WAITING)
    return datetime.fromisoformat(timeline[last + 1]["at"])


async def wakes(on: Stage) -> list[float]:
    """Return the seconds from each node's first heartbeat to the moment when its operation resumes."""
    first_heartbeats: dict[str, datetime] = {}

    async def note(message: Msg) -> None:
        first_heartbeats.setdefault(message.subject.split(".")[1], datetime.now(UTC))

    async with simulated(on, NODES, prefix=PREFIX, seconds=2) as names:
        ids = {node["name"]: node["id"] for node in (await on.http.get("/api/v1/nodes")).json()["items"]}
    answers = [
        await on.http.post(
            "/api/v1/operations", json={"kind": "install", "node": name, "backend": "echo", "force": True}
        )
        for name in names
    ]
    operations = dict(zip(names, [answer.raise_for_status().json()["op_id"] for answer in answers], strict=True))
    await asyncio.gather(*(until_waiting(on, op_id) for op_id in operations.values()))
    bus = await connect_control(on.nats_url, CredentialIssuer(on.secret("nats-account-seed")), name="bench")
    await bus.subscribe(subjects.EVERY_HEARTBEAT, note)
    async with simulated(on, NODES, prefix=PREFIX, seconds=2):
        resumed = {name: await left_waiting_at(on, op_id) for name, op_id in operations.items()}
    await bus.close()
    return [(resumed[name] - first_heartbeats[ids[name]]).total_seconds() for name in names]


async def is_monitor_running(client: Client, *, attempt: int) -> bool:
    description = await client.get_workflow_handle(FLEET_MONITOR_ID).describe()
    running = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return any(
        each.attempt >= attempt and each.state == running for each in description.raw_description.pending_activities
    )


async def resumption(on: Stage) -> float:
    """Return the seconds from kill -9 of the only worker, which is restarted, until the fleet monitor runs again."""
    client = await connect(on.temporal)
    while not await is_monitor_running(client, attempt=1):
        await asyncio.sleep(0.2)
    os.kill(on.pids()["worker"], signal.SIGKILL)
    began = time.monotonic()
    while not await is_monitor_running(client, attempt=2):
        await asyncio.sleep(0.2)
    return time.monotonic() - began


async def main() -> None:
    async with stage() as on:
        async with asyncio.timeout(PATIENCE_S):
            woken = await wakes(on)
            resumed = await resumption(on)
    lines = [
        verdict("woken after its node's first heartbeat, p50", p50(woken), bar=WOKEN_WITHIN_S, goal=1.0, unit="s"),
        verdict("woken after its node's first heartbeat, slowest", max(woken), bar=WOKEN_WITHIN_S, goal=1.5, unit="s"),
        verdict("fleet monitor goes on after kill -9", resumed, bar=RESUMED_WITHIN_S, goal=20.0, unit="s"),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    run(main())

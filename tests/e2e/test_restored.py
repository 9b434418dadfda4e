"""Every combination of PostgreSQL, Temporal and the agent restored to an older copy: nothing is lost or doubled.

One moment is copied while three operations are held back. Afterwards they end, each in another way. Then each of the
seven combinations starts from the newest copy with some of its stores replaced by the older one.
"""

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodesmith.domain.operation import ENDED, OPEN, State
from nodesmith.runtime.temporal import TemporalRuns, connect
from tests.e2e.fleet import Fleet
from tests.stack.commands import Machine

pytestmark = [pytest.mark.private_stack, pytest.mark.timeout(300)]

NODE = "agent-1"
STORES = {"postgres": "postgres", "temporal": "temporal", "agent": f"agents/{NODE}"}
COMBINATIONS = [chosen for size in (1, 2, 3) for chosen in itertools.combinations(STORES, size)]
QUICK = {
    "NODESMITH_POLICY__HEARTBEAT_TIMEOUT": "5",
    "NODESMITH_POLICY__SILENCE": "2",
    "NODESMITH_POLICY__NODE_POLL": "2",
    "NODESMITH_FLEET_TICK": "1",
    "NODESMITH_AGENT_HEARTBEAT_INTERVAL": "1",
}


def copy(source: Path, target: Path) -> None:
    """Copy with owners and modes, because PostgreSQL checks both."""
    subprocess.run(["rm", "-rf", str(target)], check=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


@dataclass
class Past:
    """A stopped system, two copies of it, and the operations between them."""

    machine: Machine
    copies: Path
    ops: dict[str, str] = field(default_factory=dict)

    def keep(self, moment: str) -> None:
        for folder in STORES.values():
            copy(self.machine.folder / folder, self.copies / moment / folder)

    def restore(self, older: Sequence[str]) -> None:
        for store, folder in STORES.items():
            moment = "older" if store in older else "newer"
            copy(self.copies / moment / folder, self.machine.folder / folder)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        self.machine.up(agents=1)
        fleet = Fleet(self.machine)
        try:
            yield fleet
        finally:
            await fleet.http.aclose()
            self.machine.down()


@pytest.fixture(scope="module")
async def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    folder = tmp_path_factory.mktemp("restored")
    past = Past(Machine(folder / "home", environment=QUICK), folder / "copies")
    async with past.running() as fleet:
        await fleet.ended(await fleet.accepted(NODE, backend="echo", version="1", alias="kept"))
        await fleet.http.put("/api/v1/hold", json={"reason": "a copy is made"})
        past.ops["done"] = await fleet.accepted(NODE, backend="echo", alias="done")
        past.ops["cancelled"] = await fleet.accepted(NODE, backend="echo", alias="cancelled")
        past.ops["removal"] = await fleet.accepted(NODE, kind="remove", backend="kept")
        for op_id in past.ops.values():
            await fleet.in_state(op_id, State.WAITING)
    past.keep("older")
    async with past.running() as fleet:
        for name in ("cancelled", "removal"):
            await fleet.cancel(past.ops[name])
            assert (await fleet.ended(past.ops[name]))["state"] == State.CANCELLED
        await fleet.http.delete("/api/v1/hold")
        assert (await fleet.ended(past.ops["done"]))["state"] == State.SUCCEEDED
        past.ops["later"] = await fleet.accepted(NODE, backend="echo", alias="later")
        assert (await fleet.ended(past.ops["later"]))["state"] == State.SUCCEEDED
    past.keep("newer")
    return past


async def settled(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Wait until no row and no run is open; return all operations."""
    client = await connect(fleet.machine.temporal_settings())
    runs = TemporalRuns(client)
    async with asyncio.timeout(90):
        while True:
            rows = await listed(fleet)
            is_open = [row for row in rows.values() if row["state"] in OPEN]
            if not is_open and not await runs.open_runs():
                return rows
            await asyncio.sleep(0.2)


async def listed(fleet: Fleet) -> dict[str, dict[str, Any]]:
    found = (await fleet.http.get("/api/v1/operations?scope=all")).json()["items"]
    return {row["op_id"]: await fleet.operation(row["op_id"]) for row in found}


def on_disk(fleet: Fleet) -> set[str]:
    backends = fleet.machine.folder / "agents" / NODE / "backends"
    return {folder.name for folder in backends.iterdir() if (folder / "current").exists()}


async def inventory_is_true(fleet: Fleet) -> None:
    """Promise 5: the inventory equals the node's disk; a new boot reads it again."""
    async with asyncio.timeout(60):
        while True:
            answer = await fleet.http.get(f"/api/nodes/{NODE}/backends")
            reported = {backend["family"] for backend in answer.json()} if answer.status_code == 200 else None
            if reported == on_disk(fleet):
                return
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("older", COMBINATIONS, ids="+".join)
async def test_restored_stores_converge_with_the_others(past: Past, older: tuple[str, ...]) -> None:
    past.restore(older)
    async with past.running() as fleet:
        if "postgres" in older:  # the hold of the copied moment is set again
            await fleet.http.delete("/api/v1/hold")
        rows = await settled(fleet)
        disk = on_disk(fleet)
        states = {name: rows[op_id]["state"] if op_id in rows else None for name, op_id in past.ops.items()}
        assert all(row["state"] in ENDED for row in rows.values())
        assert [row["state"] for row in rows.values()].count(State.FAILED) == 0, rows
        if "postgres" not in older or "temporal" not in older:
            assert (states["cancelled"], states["removal"]) == (State.CANCELLED, State.CANCELLED)
            assert "cancelled" not in disk, "Promise 3: a cancelled operation is not executed"
            assert "kept" in disk
        else:  # no store contains the cancels: these operations were open at that moment, and are executed
            assert (states["cancelled"], states["removal"]) == (State.SUCCEEDED, State.SUCCEEDED)
            assert ("cancelled" in disk, "kept" in disk) == (True, False)
        assert states["done"] == State.SUCCEEDED
        assert states["later"] in ({None} if "postgres" in older else {State.SUCCEEDED})
        await inventory_is_true(fleet)

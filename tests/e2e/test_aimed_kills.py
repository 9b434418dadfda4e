"""The worker dies before and after every effect of an operation: each still ends once, and as the node says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from domain.operation import ENDED, Reason, State
from runtime.settings import ControlSettings
from runtime.temporal import TemporalRuns, connect
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.stack.commands import Machine

pytestmark = [pytest.mark.private_stack, pytest.mark.timeout(300)]

MB = 1024 * 1024
NODE = "agent-1"
PERMIT, RECORD = "store.permits:PermitTable.permit", "store.operations:OperationTable.record"
COMMAND, CANCEL, ASK = (f"bus.commands:NodeClient.{name}" for name in ("command", "cancel", "ask"))


@dataclass
class Target:
    """A stack whose worker can be aimed at."""

    fleet: Fleet
    aim: Path
    source: SlowSource
    backend: str

    async def worker_dies(self, moment: str) -> None:
        """The next worker to live, so that its calls are counted from 1; then it is aimed at."""
        pid = self.fleet.machine.pids()["worker"]
        self.fleet.kill("worker")
        await self.fleet.restarted("worker", pid)
        self.aim.write_text(moment)

    async def died(self) -> None:
        async with asyncio.timeout(90):
            while self.aim.exists():  # noqa: ASYNC110 - the worker removes it as it dies
                await asyncio.sleep(0.05)

    async def install(self, **changes: object) -> str:
        body = {**offer(self.source, self.backend, package(2 * MB)), **changes}
        return await self.fleet.accepted(NODE, **body)

    def journal(self, op_id: str) -> dict[str, Any]:
        path = self.fleet.machine.folder / "agents" / NODE / "journal" / f"{op_id}.json"
        entry: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return entry

    def is_live(self) -> bool:
        return self.fleet.live(NODE, self.backend).exists()


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Fleet, Path]]:
    folder = tmp_path_factory.mktemp("aimed")
    quick = {
        "NODESMITH_POLICY__HEARTBEAT_TIMEOUT": "3",
        "NODESMITH_POLICY__SILENCE": "2",
        "NODESMITH_FLEET_TICK": "2",
        "NODESMITH_AGENT_HEARTBEAT_INTERVAL": "1",
        "NODESMITH_TEST_AIM": str(folder / "aim"),
        "PYTHONPATH": str(Path(__file__).parent / "aimed"),
    }
    machine = Machine(folder / "home", environment=quick)
    machine.up(agents=1)
    try:
        fleet = Fleet(machine)
        yield fleet, folder / "aim"
        await fleet.http.aclose()
    finally:
        machine.down()


@pytest.fixture
def target(stack: tuple[Fleet, Path], source: SlowSource, request: pytest.FixtureRequest) -> Target:
    return Target(stack[0], stack[1], source, f"aimed-{abs(hash(request.node.name)) % 10**8}")


async def quick(target: Target) -> str:
    """Ends within its dispatch."""
    return await target.install()


async def slow(target: Target) -> str:
    """Is followed for some seconds."""
    target.source.bytes_per_second = MB
    return await target.install()


async def broken(target: Target) -> str:
    """Fails for good: another digest was asked for."""
    return await target.install(sha256="0" * 64)


async def cancelled(target: Target) -> str:
    """Is cancelled while the node works on it."""
    target.source.bytes_per_second = MB / 20
    op_id = await target.install()
    await target.source.going.wait()
    answer = await target.fleet.http.post(f"/api/operations/{op_id}/cancel", json={})
    assert answer.status_code == 200, answer.text
    return op_id


Play = Callable[[Target], Awaitable[str]]
EXPECTED: dict[Play, tuple[State, str | None, str, bool]] = {
    quick: (State.SUCCEEDED, None, "ended", True),
    slow: (State.SUCCEEDED, None, "ended", True),
    broken: (State.FAILED, Reason.BAD_DIGEST, "ended", False),
    cancelled: (State.CANCELLED, Reason.REQUESTED, "cancelled", False),
}
"""state and reason of the row, standing in the node's journal, whether the backend serves"""
EFFECTS: dict[Play, tuple[tuple[str, int], ...]] = {
    quick: ((PERMIT, 1), (COMMAND, 1), (RECORD, 1)),
    slow: ((PERMIT, 1), (COMMAND, 1), (RECORD, 1), (ASK, 1), (RECORD, 2)),
    broken: ((PERMIT, 1), (COMMAND, 1), (RECORD, 1)),
    cancelled: ((CANCEL, 1), (RECORD, 2)),
}
SOON = {(broken, f"{RECORD} after 1"), (quick, f"{COMMAND} after 1"), (cancelled, f"{CANCEL} after 1")}
"""in every run of the tests; `make chaos` has all of them"""


def moments() -> list[Any]:
    found = [
        (play, f"{effect} {when} {number}")
        for play, effects in EFFECTS.items()
        for effect, number in effects
        for when in ("before", "after")
    ]
    return [
        pytest.param(*each, id=f"{each[0].__name__}, {each[1]}", marks=() if each in SOON else pytest.mark.long)
        for each in found
    ]


@pytest.mark.parametrize(("play", "moment"), moments())
async def test_worker_that_dies_around_an_effect_changes_no_end(target: Target, play: Play, moment: str) -> None:
    """Promises 2 to 4: one end, agreed between row, run, journal and disk; a failed operation is not tried again."""
    await target.worker_dies(moment)
    op_id = await play(target)
    await target.died()
    operation = await target.fleet.ended(op_id)
    state, reason, standing, is_live = EXPECTED[play]
    assert (operation["state"], operation["reason"]) == (state, reason), operation["message"]
    await closed(target.fleet, op_id)
    told = [event["state"] for event in (await target.fleet.operation(op_id))["timeline"]]
    assert [state for state in told if state in ENDED] == [state]
    entry = target.journal(op_id)
    assert (entry["standing"], entry["decision"]) == (standing, 1)
    assert target.is_live() is is_live


async def closed(fleet: Fleet, op_id: str) -> None:
    """The run holds the lock no longer."""
    client = await connect(ControlSettings(temporal_address=f"127.0.0.1:{fleet.machine.base + 1}"))
    runs = TemporalRuns(client)
    async with asyncio.timeout(60):
        while op_id in {run.op_id for run in await runs.open_runs()}:  # noqa: ASYNC110 - another process closes it
            await asyncio.sleep(0.1)

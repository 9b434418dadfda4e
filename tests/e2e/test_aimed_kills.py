"""The worker is killed before and after every effect of an operation; each still ends once, as the node reports."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodesmith.domain.operation import ENDED, Reason, State
from nodesmith.runtime.temporal import TemporalRuns, connect
from tests.e2e.fleet import Fleet, offer
from tests.e2e.slow_source import SlowSource, package
from tests.stack.commands import Machine

pytestmark = [pytest.mark.private_stack, pytest.mark.timeout(300)]

MB = 1024 * 1024
NODE = "agent-1"
PERMIT, RECORD = (
    "nodesmith.store.operations.permits:PermitTable.permit",
    "nodesmith.store.operations.operations:OperationTable.record",
)
COMMAND, CANCEL, ASK = (f"nodesmith.bus.commands:NodeClient.{name}" for name in ("order", "cancel", "ask"))


@dataclass
class Target:
    """A stack whose worker can be killed at a chosen moment."""

    fleet: Fleet
    aim: Path
    source: SlowSource
    backend: str

    async def worker_dies(self, moment: str) -> None:
        """Restart the worker, so that its calls are counted from 1, and set the moment of its death."""
        pid = self.fleet.machine.pids()["worker"]
        self.fleet.kill("worker")
        await self.fleet.restarted("worker", pid)
        self.aim.write_text(moment)

    async def died(self) -> None:
        async with asyncio.timeout(90):
            while self.aim.exists():  # noqa: ASYNC110 - the worker removes it when it dies
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
    """An operation that ends during its dispatch."""
    return await target.install()


async def slow(target: Target) -> str:
    """An operation that runs for some seconds."""
    target.source.bytes_per_second = MB
    return await target.install()


async def broken(target: Target) -> str:
    """An operation that fails permanently: the digest is wrong."""
    return await target.install(sha256="0" * 64)


async def cancelled(target: Target) -> str:
    """An operation that is cancelled while the node runs it."""
    target.source.bytes_per_second = MB / 20
    op_id = await target.install()
    await target.source.going.wait()
    answer = await target.fleet.cancel(op_id)
    assert answer.status_code == 202, answer.text
    return op_id


Play = Callable[[Target], Awaitable[str]]
EXPECTED: dict[Play, tuple[State, str | None, str, bool]] = {
    quick: (State.SUCCEEDED, None, "ended", True),
    slow: (State.SUCCEEDED, None, "ended", True),
    broken: (State.FAILED, Reason.BAD_DIGEST, "ended", False),
    cancelled: (State.CANCELLED, Reason.REQUESTED, "cancelled", False),
}
"""state and reason of the row, standing in the node's journal, whether the backend is installed"""
EFFECTS: dict[Play, tuple[tuple[str, int], ...]] = {
    quick: ((PERMIT, 1), (COMMAND, 1), (RECORD, 1)),
    slow: ((PERMIT, 1), (COMMAND, 1), (RECORD, 1), (ASK, 1), (RECORD, 2)),
    broken: ((PERMIT, 1), (COMMAND, 1), (RECORD, 1)),
    cancelled: ((CANCEL, 1), (RECORD, 2)),
}
SOON = {(broken, f"{RECORD} after 1"), (quick, f"{COMMAND} after 1"), (cancelled, f"{CANCEL} after 1")}
"""in every test run; `make chaos` runs all of them"""


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
async def test_worker_killed_around_an_effect_does_not_change_the_outcome(
    target: Target, play: Play, moment: str
) -> None:
    """Promises 2 to 4: one outcome in row, run, journal and disk; a failed operation is not retried."""
    await target.worker_dies(moment)
    op_id = await play(target)
    await target.died()
    operation = await target.fleet.ended(op_id)
    state, reason, standing, is_live = EXPECTED[play]
    assert (operation["state"], operation["reason"]) == (state, reason), operation["message"]
    await closed(target.fleet, op_id)
    states = [event["state"] for event in (await target.fleet.operation(op_id))["timeline"]]
    assert [state for state in states if state in ENDED] == [state]
    entry = target.journal(op_id)
    assert (entry["standing"], entry["decision"]) == (standing, 1)
    assert target.is_live() is is_live


async def closed(fleet: Fleet, op_id: str) -> None:
    """Wait until the run has released the lock."""
    client = await connect(fleet.machine.temporal_settings())
    runs = TemporalRuns(client)
    async with asyncio.timeout(60):
        while op_id in {run.op_id for run in await runs.open_runs()}:  # noqa: ASYNC110 - another process closes it
            await asyncio.sleep(0.1)

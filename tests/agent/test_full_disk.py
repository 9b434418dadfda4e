"""A full file system: plan, outcome and tombstone are written from the reserve, or nothing is acknowledged."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from nodesmith.agent.disk.durable_files import Disk
from nodesmith.agent.operations.change_plan import Step
from nodesmith.contracts.nats.messages import Answer, CancelAnswer, Result
from nodesmith.domain.kinds import Kind
from tests.agent.plan_faults import PLANNED, AgentRun, step_in
from tests.agent.test_kill_matrix import Bench, pointers
from tests.stack.disks import SmallDisk, small_disk

MEGABYTES = 8


class Filling(Disk):
    """Fills the file system just before the journal records one step."""

    def __init__(self, disk: SmallDisk, reserve: Path) -> None:
        self.step = ""
        self.keeps_reserve = True
        self._disk = disk
        self._reserve = reserve

    def write(self, path: Path, content: bytes, mode: int) -> None:
        if self.step and path.name == ".op.json.draft" and step_in(content) == self.step:
            self.step = ""
            if not self.keeps_reserve:
                self._reserve.unlink(missing_ok=True)
            self._disk.fill()
        super().write(path, content, mode)


class Node:
    """A node on the small disk, with version 2 of a backend running and version 1 as previous."""

    def __init__(self, disk: SmallDisk, bench: Bench) -> None:
        self.disk = disk
        self.bench = bench
        self.home = disk.folder / "home"
        self.filling = Filling(disk, self.home / "reserve")
        self.life = AgentRun(self.home, bench.http, self.filling)

    async def begin(self) -> None:
        await self.life.begin()
        for version in ("1", "2"):
            command = self.bench.command(f"v{version}", Kind.INSTALL, version, start=version == "2")
            assert (await self.life.outcome_of(command)).result is Result.SUCCEEDED

    async def again(self) -> AgentRun:
        """Return the tree after the agent ended and disk space was freed."""
        await self.life.close()
        self.disk.free()
        self.life = await AgentRun(self.home, self.bench.http).begin()
        return self.life


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with httpx2.AsyncClient(verify=False) as http:
        with small_disk(tmp_path / "disk", megabytes=MEGABYTES) as disk:
            node = Node(disk, Bench(tmp_path, http))
            await node.begin()
            yield node
            await node.life.assembly.stop_backends()
            await node.life.close()


@pytest.mark.parametrize("kind", [Kind.ROLLBACK, Kind.REMOVE])
@pytest.mark.parametrize("step", [PLANNED, Step.PROVEN, Step.END])
async def test_reserve_lets_a_change_succeed_on_a_full_disk(node: Node, kind: Kind, step: str):
    node.filling.step = step
    command = node.bench.command("op", kind, "")
    outcome = await node.life.outcome_of(command)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    life = await node.again()
    assert life.reported == []
    assert (await life.send(command)).answer is Answer.ENDED
    assert pointers(node.home) == (("1", "2") if kind is Kind.ROLLBACK else ("", ""))


@pytest.mark.parametrize("step", [PLANNED, Step.SET_CURRENT, Step.START, Step.PROVEN, Step.END])
async def test_full_disk_without_reserve_leaves_a_valid_tree_and_allows_a_retry(node: Node, step: str):
    node.filling.step, node.filling.keeps_reserve = step, False
    command = node.bench.command("op", Kind.ROLLBACK, "")
    outcome = await node.life.outcome_of(command)
    assert outcome.result is (Result.SUCCEEDED if step == Step.END else outcome.result)
    life = await node.again()
    again = await life.outcome_of(command.model_copy(update={"decision": 2}))
    assert again.result is Result.SUCCEEDED, again.error
    assert pointers(node.home) == ("1", "2")
    await life.serves("echo", "1")


async def test_a_cancel_on_a_full_disk_is_acknowledged_only_with_its_tombstone(node: Node):
    command = node.bench.command("op", Kind.ROLLBACK, "")
    (node.home / "reserve").unlink()
    node.disk.fill()
    reply = await node.life.cancel(command)
    assert (reply.answer, "No space left" in reply.error) == (CancelAnswer.UNKNOWN, True)
    node.disk.free()
    assert (await node.life.cancel(command)).answer is CancelAnswer.STOPPED
    node.disk.fill()
    life = await node.again()
    assert (await life.send(command)).answer is Answer.REFUSED


async def test_with_its_reserve_a_cancel_on_a_full_disk_is_acknowledged_and_kept(node: Node):
    command = node.bench.command("op", Kind.ROLLBACK, "")
    node.disk.fill()
    assert (await node.life.cancel(command)).answer is CancelAnswer.STOPPED
    life = await node.again()
    assert (await life.send(command)).answer is Answer.REFUSED

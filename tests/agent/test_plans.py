"""Interrupted plans: other operations, cancel, and recovery at start."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from nodesmith.agent.operations.change_plan import Step
from nodesmith.agent.run.backend_process import BackendProcess
from nodesmith.agent.run.confinement import Confinement
from nodesmith.contracts.nats.messages import Answer, CancelAnswer, Command, NodeOperationStatus, Result
from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason
from tests.agent.plan_faults import AgentRun, Boundary, Fault, quiet_loop
from tests.agent.test_kill_matrix import Bench, pointers
from tests.agent.waiting import until


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with httpx2.AsyncClient(verify=False) as http:
        yield Bench(tmp_path, http)


async def interrupted(bench: Bench, home: Path, asked: Command, *before: Command) -> AgentRun:
    """Restart the agent after a kill -9 just after `current` moved."""
    disk = Boundary(home)
    life = await AgentRun(home, bench.http, disk).begin()
    for command in before:
        assert (await life.outcome_of(command)).result is Result.SUCCEEDED
    disk.arm(asked.op_id, Step.SET_CURRENT, Fault.KILL_BEFORE)
    with quiet_loop():
        await life.send(asked)
        await until(lambda: disk.was_met, pause=0.01)
        await life.killed()
    return await AgentRun(home, bench.http).begin()


async def test_another_operation_closes_an_interrupted_plan_first(bench: Bench, tmp_path: Path):
    """An interrupted plan must not resume on a tree that another operation changed."""
    upgrade = bench.command("upgrade", Kind.UPGRADE, "2")
    life = await interrupted(bench, tmp_path / "home", upgrade, bench.command("first", Kind.INSTALL, "1"))
    assert (await life.outcome_of(bench.command("other", Kind.UPGRADE, "3"))).result is Result.SUCCEEDED
    assert pointers(life.home) == ("3", "1")
    known = await life.ask(upgrade)
    assert known.outcome is not None
    assert (known.standing, known.outcome.reason) == (NodeOperationStatus.ENDED, Reason.NODE_ERROR)
    reply = await life.send(upgrade)
    assert (reply.answer, pointers(life.home)) == (Answer.ENDED, ("3", "1"))
    assert not (life.home / "backends" / "echo" / "2").exists()
    await life.close()
    again = await AgentRun(life.home, bench.http).begin()
    assert (again.reported, pointers(life.home)) == ([], ("3", "1"))
    assert (await again.outcome_of(upgrade.model_copy(update={"decision": 2}))).result is Result.SUCCEEDED
    assert pointers(life.home) == ("2", "3")
    await again.close()


async def test_a_plan_whose_version_is_gone_begins_from_the_beginning(bench: Bench, tmp_path: Path):
    upgrade = bench.command("upgrade", Kind.UPGRADE, "2")
    life = await interrupted(bench, tmp_path / "home", upgrade, bench.command("first", Kind.INSTALL, "1"))
    (life.home / "backends" / "echo" / "2" / "metadata.json").unlink()
    outcome = await life.outcome_of(upgrade)
    assert outcome.result is Result.SUCCEEDED, outcome.error
    current, previous = pointers(life.home)
    assert (current.startswith("2"), previous) == (True, "1")
    assert (life.home / "backends" / "echo" / current / "metadata.json").is_file()
    await life.close()


async def test_a_cancelled_plan_leaves_the_old_tree_and_no_trace(bench: Bench, tmp_path: Path):
    upgrade = bench.command("upgrade", Kind.UPGRADE, "2")
    life = await interrupted(bench, tmp_path / "home", upgrade, bench.command("first", Kind.INSTALL, "1"))
    assert (life.home / "backends" / "echo" / "2").is_dir()
    assert (await life.cancel(upgrade)).answer is CancelAnswer.STOPPED
    assert {path.name for path in (life.home / "backends" / "echo").iterdir()} == {"1", "current"}
    assert (await life.send(upgrade)).answer is Answer.REFUSED
    await life.close()


async def test_process_without_a_record_is_killed_when_the_agent_starts(bench: Bench, tmp_path: Path):
    """The agent was killed between the start of a process and the write of its record."""
    home = tmp_path / "home"
    life = await AgentRun(home, bench.http).begin()
    await life.outcome_of(bench.command("first", Kind.INSTALL, "1", start=True))
    known = life.assembly.supervisor.of("echo")[0].record.pid
    await life.close()
    folder = home / "backends" / "echo" / "1"
    lost = BackendProcess.start(Confinement(home).launch(folder, "127.0.0.1:20999"), tmp_path / "lost.log")
    again = await AgentRun(home, bench.http).begin()
    await until(lambda: not lost.is_alive(), pause=0.01)
    assert [keeper.record.pid for keeper in again.assembly.supervisor.serving()] == [known]
    os.killpg(known, signal.SIGKILL)
    await again.assembly.stop_backends()
    await again.close()

"""The agent as a separate process: killed, stopped, restarted."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from nodesmith.bus.commands import NodeClient
from nodesmith.contracts.nats.messages import Answer, CancelAnswer, CancelCommand, NodeOperationStatus, Outcome, Result
from nodesmith.domain.errors import NoAnswer, NodeAway
from nodesmith.domain.operation import Phase
from tests.agent.archives import big, packed
from tests.agent.nodes import LONG, Node
from tests.agent.waiting import until
from tests.agent.web import Web

ECHO_1 = packed(run_sh=b"echo 1")
HALF = 1_000_000


class Process:
    """`python -m nodesmith.agent.main`, as the stack starts it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._running: asyncio.subprocess.Process | None = None

    async def start(self, *, dies_after: str = "", **settings: Any) -> None:
        """`dies_after`: as `tests.agent.self_killing_agent` reads it."""
        module = "tests.agent.self_killing_agent" if dies_after else "nodesmith.agent.main"
        values = self.node.environment(heartbeat_interval=1, **settings)
        environment = {f"NODESMITH_AGENT_{name.upper()}": str(value) for name, value in values.items()}
        with (self.node.home / "agent.log").open("ab") as log:
            self._running = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                env=os.environ | environment | {"DIES_AFTER": dies_after},
                stderr=log,
                stdout=log,
            )
        await self.node.linked()

    async def end(self, number: signal.Signals) -> int:
        assert self._running is not None
        if self._running.returncode is None:
            self._running.send_signal(number)
        return await asyncio.wait_for(self._running.wait(), LONG)

    async def died(self) -> None:
        """Wait until the agent has killed itself."""
        assert self._running is not None
        assert await asyncio.wait_for(self._running.wait(), LONG) == -signal.SIGKILL

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        assert self._running is not None
        return int(psutil.Process(self._running.pid).memory_info().rss)

    async def killed(self) -> None:
        """Send kill -9 and wait until NATS has noticed.

        Until the server notices the lost connection, it delivers queries to it that are never answered.
        """
        assert await self.end(signal.SIGKILL) == -signal.SIGKILL
        async with asyncio.timeout(LONG):
            while True:
                with contextlib.suppress(NoAnswer):
                    try:
                        await self.node.control.list_backends(self.node.id, within=1)
                    except NodeAway:
                        return


@asynccontextmanager
async def process_of(node: Node) -> AsyncIterator[Process]:
    process = Process(node)
    await process.start()
    try:
        yield process
    finally:
        await process.end(signal.SIGKILL)


@pytest.fixture
async def process(control_plane: Web, control: NodeClient, tmp_path: Path) -> AsyncIterator[Process]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(process_of(Node("agent-1", tmp_path / "a", control_plane, control)))


async def begin_and_wait_at_half(node: Node, **fields: Any) -> Any:
    command = node.command(big(2 * HALF), **fields)
    node.served(command).stops_at = HALF
    assert (await node.send(command)).answer is Answer.ACCEPTED
    await until(lambda: node.partial_bytes() == HALF, within=LONG, pause=0.01)
    return command


async def test_killed_agent_resumes_only_on_a_repeated_command(process: Process):
    node = process.node
    command = await begin_and_wait_at_half(node)
    await until(lambda: f'"bytes_done":{HALF}' in node.journal(command.op_id), within=LONG, pause=0.01)
    async with node.control.attach(node.id, command.op_id) as reports:
        await process.killed()
        await process.start()
        report = await reports.next(LONG)  # the restarted agent reports its interrupted operation
        while not isinstance(report, Outcome):
            report = await reports.next(LONG)
        assert (report.result, report.decision) == (Result.INTERRUPTED, command.decision)
    asked = await node.control.ask(node.id, command.op_id, within=LONG)
    assert asked.standing is NodeOperationStatus.INTERRUPTED
    assert asked.progress is not None
    reached = asked.progress.phase, asked.progress.bytes_done, asked.progress.bytes_total
    assert reached == (Phase.DOWNLOADING, HALF, command.size)
    assert len(node.site.requests(command.uri)) == 1
    node.served(command).released.set()
    outcome = await node.outcome_of(command)
    assert (outcome.result, outcome.bytes_reused) == (Result.SUCCEEDED, HALF)
    assert outcome.bytes_fetched == node.served(command).content.__len__() - HALF
    assert node.site.requests(command.uri)[-1].headers["Range"] == f"bytes={HALF}-"
    assert (node.live() / "payload").stat().st_size == 2 * HALF


async def test_an_idle_agent_that_is_linked_stays_below_75_mb(process: Process):
    assert process.memory() < 75_000_000


async def test_a_cancel_survives_the_kill_of_its_agent(process: Process):
    node = process.node
    command = await begin_and_wait_at_half(node)
    reply = await node.control.cancel(node.id, CancelCommand(op_id=command.op_id), within=LONG)
    assert reply.answer is CancelAnswer.STOPPED
    await node.control.cancel(node.id, CancelCommand(op_id="unknown"), within=LONG)
    await process.killed()
    await process.start()
    assert (await node.send(command.model_copy(update={"decision": 99}))).answer is Answer.REFUSED
    unknown = command.model_copy(update={"op_id": "unknown"})
    assert (await node.send(unknown)).answer is Answer.REFUSED
    assert node.tree() == {}


async def test_an_outcome_survives_the_kill_of_its_agent(process: Process):
    node = process.node
    command = node.command(ECHO_1)
    outcome = await node.outcome_of(command)
    before = node.tree()
    await process.killed()
    await process.start()
    reply = await node.send(command.model_copy(update={"decision": 99}))
    assert reply.outcome is not None
    assert (reply.answer, reply.outcome.result) == (Answer.ENDED, outcome.result)
    assert node.tree() == before
    assert len(node.site.requests(command.uri)) == 1


async def test_restart_reports_a_new_boot_and_keeps_the_node_id(process: Process):
    node = process.node
    first = node.id
    await process.killed()
    await process.start()
    boots = [each["boot_id"] for each in node.site.registrations]
    assert (node.id, len(set(boots))) == (first, 2)
    assert len({each["machine_id"] for each in node.site.registrations}) == 1


async def test_sigterm_interrupts_and_reports_work_and_exits_with_0(process: Process):
    node = process.node
    command = await begin_and_wait_at_half(node)
    async with node.control.attach(node.id, command.op_id) as reports:
        assert await process.end(signal.SIGTERM) == 0
        report = await reports.next(LONG)
        while not isinstance(report, Outcome):
            report = await reports.next(LONG)
    assert report.result is Result.INTERRUPTED
    assert node.partial_bytes() == HALF
    await process.start()
    node.served(command).released.set()
    assert (await node.outcome_of(command)).result is Result.SUCCEEDED


async def test_agent_starts_while_the_control_plane_is_down(process: Process):
    """NATS and the stored credential are enough to start; everything that needs the API can wait."""
    node = process.node
    await node.outcome_of(node.command(ECHO_1))
    await process.killed()
    registered = len(node.site.registrations)
    await process.start(url="http://127.0.0.1:9")
    assert (await node.control.list_backends(node.id, within=LONG)).backends[0].version == "1"
    assert len(node.site.registrations) == registered

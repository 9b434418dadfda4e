"""The tour: each step injects a fault and checks a promise of the system."""

import asyncio
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

import httpx2

from nodesmith.cli.commands.demo.artifact import DemoArtifact, make_artifact
from nodesmith.cli.commands.demo.screen import Line, Screen
from nodesmith.cli.commands.demo.source import Source
from nodesmith.cli.commands.demo.system import SPARE, System
from nodesmith.cli.output.render import duration, local_time, size
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.operation import ENDED, Reason, State

KILLED = ("api", "worker", "nats", "postgres", "temporal", "agent-3")
AGENTS = ("agent-1", "agent-2", "agent-3")
KILL_AT = 0.6
CANCEL_AT = UNPLUG_AT = 0.4
SMALLER = 0.3
"""size of the small artifact, relative to the big one"""
MAY_FETCH_TWICE = 0.1
"""part of the artifact that a killed agent may fetch again: the bytes in flight when it died"""
OBSERVE_S = 1.5
PATIENCE_S = 90.0
_POLL_S = 0.2


class Tour:
    """Runs the steps in order; broken promises are printed and collected in `screen.failed`."""

    def __init__(self, system: System, source: Source, screen: Screen) -> None:
        self._system = system
        self._source = source
        self._screen = screen
        self._lines: list[Line] = []
        self._artifacts: dict[str, DemoArtifact] = {}
        self._api_answers = True

    async def run(self, megabytes: int) -> None:
        await self._prepare(megabytes)
        await self.kill_everything()
        await self.cancel_install()
        await self.unplug_node()
        await self.check_temporal_run()
        await self.count_results()

    async def _prepare(self, megabytes: int) -> None:
        await self._system.plug_in()
        for name, part in (("big", 1.0), ("small", SMALLER)):
            artifact = await asyncio.to_thread(make_artifact, int(megabytes * part * 1_000_000))
            self._artifacts[name] = artifact
            self._source.offer(name, artifact)
        await self._system.approve(SPARE)

    # (a)

    async def kill_everything(self) -> None:
        big = self._artifacts["big"]
        self._screen.heading(f"1. {size(big.size)} on three nodes, and every process is killed in the middle")
        self._screen.print_line(
            "proves: an accepted operation survives the death of every process and keeps the bytes already fetched"
        )
        lines = [await self._start_install(node, "demo-big", "big") for node in AGENTS]
        await self._watch(lines, lambda: min(line.fetched for line in lines) >= KILL_AT)
        before = self._system.restarts()
        victims = self._system.kill(KILLED)
        self._screen.print_line("kill -9 " + ", ".join(f"{name} ({pid})" for name, pid in victims.items()))
        await self._watch(lines, lambda: _all_ended(lines))
        async with asyncio.timeout(PATIENCE_S):
            await self._system.wait_until_running()
        after = self._system.restarts()
        self._screen.check(
            "every killed process was restarted automatically", holds=all(after[name] > before[name] for name in KILLED)
        )
        for line in lines:
            self._check_install(line, big)
        self._check_bytes(lines)
        twice = sum(_refetched_bytes(line) for line in lines)
        self._screen.print_line(f"fetched twice, all nodes together: {size(twice)} of {size(big.size * len(lines))}")

    def _check_bytes(self, lines: Sequence[Line]) -> None:
        for line in lines:
            allowed = int(line.total * MAY_FETCH_TWICE) if line.node in KILLED else 0
            self._screen.check(
                f"{line.node} was sent {size(line.counter.sent)} in {line.counter.requests} request(s):"
                f" {size(_refetched_bytes(line))} of it twice",
                holds=_refetched_bytes(line) <= allowed,
            )

    # (b)

    async def cancel_install(self) -> None:
        self._screen.heading("2. A cancel stops the node, not just the display")
        self._screen.print_line("proves: after the node has acknowledged, it fetches and changes nothing")
        line = await self._start_install("agent-1", "demo-cancelled", "small")
        await self._watch([line], lambda: line.fetched >= CANCEL_AT)
        asked_at = time.monotonic()
        await self._system.cancel(line.op_id)
        await self._watch([line], lambda: _all_ended([line]))
        message = line.seen.message if line.seen else "-"
        self._screen.check(f"its message: {message}", holds=line.state == State.CANCELLED)
        sent = line.counter.sent
        delay = line.counter.last_byte_at - asked_at
        self._screen.print_line(f"the source sent its last byte {delay:.1f} s after the cancel")
        await asyncio.sleep(OBSERVE_S)
        self._screen.check(
            f"the source's counter stays at {size(sent)} of {size(line.total)}", holds=line.counter.sent == sent
        )
        left = self._system.folder("agent-1", "demo-cancelled")
        self._screen.check("nothing of it is on the node's disk", holds=not list(left.glob("*")))

    # (c)

    async def unplug_node(self) -> None:
        self._screen.heading("3. A node is unplugged in the middle of an install")
        self._screen.print_line(
            "proves: an offline node is not a failure; the operation reports what it waits for, and completes by itself"
        )
        await self._until_healthy(SPARE)
        line = await self._start_install(SPARE, "demo-unplugged", "small")
        await self._watch([line], lambda: line.fetched >= UNPLUG_AT)
        await self._system.unplug()
        self._screen.print_line(f"{SPARE} is off")
        await self._watch([line], lambda: line.seen is not None and line.seen.reason is Reason.NODE_AWAY)
        seen = line.seen
        self._screen.check(
            f"its message: {seen.message if seen else '-'}, until {local_time(seen.until if seen else None) or '-'}",
            holds=seen is not None and seen.state is State.WAITING and seen.until is not None,
        )
        plugged_at = time.monotonic()
        await self._system.plug_in()
        self._screen.print_line(f"{SPARE} is on again; the operation needs no action")
        await self._watch([line], lambda: _all_ended([line]))
        self._check_install(line, self._artifacts["small"])
        self._screen.print_line(f"ended {duration(time.monotonic() - plugged_at)} after the node was back")

    async def _until_healthy(self, node: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self._system.node(node)).status is not NodeStatus.HEALTHY:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    # (d)

    async def check_temporal_run(self) -> None:
        self._screen.heading("4. The same operation in the Temporal Web UI")
        self._screen.print_line("proves: each operation is a workflow run that can be inspected")
        seen = self._lines[0].seen
        if seen is None:
            return self._screen.check("the operation has a run", holds=False)
        workflow = (
            f"{self._system.temporal_ui_url}/api/v1/namespaces/default/workflows/{quote(seen.workflow_id, safe='')}"
        )
        headers = {"Authorization": f"Bearer {self._system.token}"}
        async with httpx2.AsyncClient(trust_env=False, headers=headers) as http:
            described = (await http.get(workflow, params={"execution.runId": seen.run_id})).json()
        status = described.get("workflowExecutionInfo", {}).get("status", "unknown")
        self._screen.check(f"Temporal reports {status}", holds=status == "WORKFLOW_EXECUTION_STATUS_COMPLETED")
        return self._screen.print_line(f"{seen.temporal_url}   (`nodesmith demo --keep` leaves it there)")

    # totals

    async def count_results(self) -> None:
        """Count lost, doubled and stuck operations from the API, the nodes' reports and their disks."""
        await self._refresh(self._lines)
        known = await self._system.operations()
        accepted = {line.op_id for line in self._lines}
        lost = len(accepted - set(known)) + sum([await self._is_missing(line) for line in self._lines])
        doubled = len(set(known) - accepted) + sum([await self._is_doubled(line) for line in self._lines])
        stuck = sum(line.state not in ENDED for line in self._lines)
        if lost or doubled or stuck:
            self._screen.failed.append("the count")
        self._screen.conclude(f"lost {lost}, doubled {doubled}, stuck {stuck}")

    async def _is_missing(self, line: Line) -> bool:
        """Return whether state and disk disagree: succeeded but not on the disk, or the reverse."""
        artifact = next(one for one in self._artifacts.values() if one.size == line.total)
        on_disk = await asyncio.to_thread(self._system.has_installed, line.node, line.name, artifact)
        return on_disk != (line.state == State.SUCCEEDED)

    async def _is_doubled(self, line: Line) -> bool:
        """Return whether it was done twice: fetched completely twice, or listed with a previous version."""
        listed = [entry for entry in await self._system.listed(line.node) if entry.name == line.name]
        return _refetched_bytes(line) >= line.total or len(listed) > 1 or any(entry.previous_digest for entry in listed)

    # following

    async def _start_install(self, node: str, name: str, artifact: str) -> Line:
        """Request an install and follow it from now on."""
        wanted = self._artifacts[artifact]
        op_id = await self._system.install(node, name, self._source.uri(node, artifact), wanted)
        line = Line(node, name, op_id, wanted.size, self._source.counter(node, artifact))
        self._screen.print_line(f"{node}: operation {op_id}")
        self._lines.append(line)
        return line

    async def _watch(self, lines: Sequence[Line], done: Callable[[], bool]) -> None:
        """Show the operations until `done` holds; report a broken promise if that takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        with self._screen.live(lines, lambda: self._api_answers) as refresh:
            while not done() and time.monotonic() < deadline:
                await self._refresh(lines)
                refresh()
                await asyncio.sleep(_POLL_S)
        if not done():
            self._screen.check(f"the expected state was reached within {PATIENCE_S:.0f} s", holds=False)

    async def _refresh(self, lines: Sequence[Line]) -> None:
        for line in lines:
            seen = await self._system.operation(line.op_id)
            self._api_answers = seen is not None
            line.seen = seen or line.seen

    def _check_install(self, line: Line, artifact: DemoArtifact) -> None:
        succeeded = line.state == State.SUCCEEDED
        is_correct = self._system.has_installed(line.node, line.name, artifact)
        self._screen.check(
            f"{line.node}: {line.state}, sha256 on its disk is {'correct' if is_correct else 'wrong'}",
            holds=succeeded and is_correct,
        )


def _refetched_bytes(line: Line) -> int:
    return max(line.counter.sent - line.total, 0)


def _all_ended(lines: Sequence[Line]) -> bool:
    return all(line.state in ENDED for line in lines)

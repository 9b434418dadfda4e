"""The tour: each step does something unkind to the system and checks what it promised."""

import asyncio
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

import httpx2

from cli.demo.artifact import DemoArtifact, make_artifact
from cli.demo.screen import Line, Screen
from cli.demo.source import Source
from cli.demo.system import SPARE, System
from cli.render import duration, local_time, size
from domain.node import NodeStatus
from domain.operation import ENDED, Reason, State

KILLED = ("api", "worker", "nats", "postgres", "temporal", "agent-3")
AGENTS = ("agent-1", "agent-2", "agent-3")
KILL_AT = 0.6
CANCEL_AT = UNPLUG_AT = 0.4
SMALLER = 0.3
"""of the big artifact: for the steps that are about something else than size"""
MAY_FETCH_TWICE = 0.1
"""of the artifact, by an agent that was killed: what was on its way when it died"""
STANDS_STILL_S = 1.5
PATIENCE_S = 90.0
_POLL_S = 0.2


class Tour:
    """Runs the steps in order; what does not hold is on the screen and in `screen.failed`."""

    def __init__(self, system: System, source: Source, screen: Screen) -> None:
        self._system = system
        self._source = source
        self._screen = screen
        self._lines: list[Line] = []
        self._artifacts: dict[str, DemoArtifact] = {}
        self._api_answers = True

    async def run(self, megabytes: int) -> None:
        await self._prepare(megabytes)
        await self.everything_dies()
        await self.a_cancel_stops_the_node()
        await self.a_node_is_unplugged()
        await self.the_run_is_in_temporal()
        await self.count()

    async def _prepare(self, megabytes: int) -> None:
        await self._system.plug_in()
        for name, part in (("big", 1.0), ("small", SMALLER)):
            artifact = await asyncio.to_thread(make_artifact, int(megabytes * part * 1_000_000))
            self._artifacts[name] = artifact
            self._source.offer(name, artifact)
        await self._system.admit(SPARE)

    # (a)

    async def everything_dies(self) -> None:
        big = self._artifacts["big"]
        self._screen.heading(f"1. {size(big.size)} on three nodes, and everything dies in the middle")
        self._screen.say(
            "proves: an accepted operation survives the death of every process, and its bytes are not wasted"
        )
        lines = [await self._ask(node, "demo-big", "big") for node in AGENTS]
        await self._watch(lines, lambda: min(line.fetched for line in lines) >= KILL_AT)
        before = self._system.restarts()
        victims = self._system.kill(KILLED)
        self._screen.say("kill -9 " + ", ".join(f"{name} ({pid})" for name, pid in victims.items()))
        await self._watch(lines, lambda: _all_ended(lines))
        async with asyncio.timeout(PATIENCE_S):
            await self._system.until_all_run()
        after = self._system.restarts()
        self._screen.check(
            "everything that was killed came back by itself", holds=all(after[name] > before[name] for name in KILLED)
        )
        for line in lines:
            self._check_install(line, big)
        self._check_bytes(lines)
        twice = sum(_twice(line) for line in lines)
        self._screen.say(f"fetched twice, all nodes together: {size(twice)} of {size(big.size * len(lines))}")

    def _check_bytes(self, lines: Sequence[Line]) -> None:
        for line in lines:
            allowed = int(line.total * MAY_FETCH_TWICE) if line.node in KILLED else 0
            self._screen.check(
                f"{line.node} was sent {size(line.counter.sent)} in {line.counter.requests} request(s):"
                f" {size(_twice(line))} of it twice",
                holds=_twice(line) <= allowed,
            )

    # (b)

    async def a_cancel_stops_the_node(self) -> None:
        self._screen.heading("2. A cancel stops the node, not just the display")
        self._screen.say("proves: once the node has acknowledged, it fetches nothing and changes nothing any more")
        line = await self._ask("agent-1", "demo-cancelled", "small")
        await self._watch([line], lambda: line.fetched >= CANCEL_AT)
        asked_at = time.monotonic()
        await self._system.cancel(line.op_id)
        await self._watch([line], lambda: _all_ended([line]))
        self._screen.check(f"it says: {line.seen.message if line.seen else '-'}", holds=line.state == State.CANCELLED)
        sent = line.counter.sent
        self._screen.say(f"the source sent its last byte {line.counter.last_byte_at - asked_at:.1f} s after the cancel")
        await asyncio.sleep(STANDS_STILL_S)
        self._screen.check(
            f"the source's counter stands still at {size(sent)} of {size(line.total)}", holds=line.counter.sent == sent
        )
        left = self._system.folder("agent-1", "demo-cancelled")
        self._screen.check("nothing of it is on the node's disk", holds=not list(left.glob("*")))

    # (c)

    async def a_node_is_unplugged(self) -> None:
        self._screen.heading("3. A node is unplugged in the middle of an install")
        self._screen.say(
            "proves: an absent node is not a failure; the operation says what it waits for, and ends by itself"
        )
        await self._until_healthy(SPARE)
        line = await self._ask(SPARE, "demo-unplugged", "small")
        await self._watch([line], lambda: line.fetched >= UNPLUG_AT)
        await self._system.unplug()
        self._screen.say(f"{SPARE} is off")
        await self._watch([line], lambda: line.seen is not None and line.seen.reason is Reason.NODE_AWAY)
        seen = line.seen
        self._screen.check(
            f"it says: {seen.message if seen else '-'}, until {local_time(seen.until if seen else None) or '-'}",
            holds=seen is not None and seen.state is State.WAITING and seen.until is not None,
        )
        plugged_at = time.monotonic()
        await self._system.plug_in()
        self._screen.say(f"{SPARE} is on again; nobody touches the operation")
        await self._watch([line], lambda: _all_ended([line]))
        self._check_install(line, self._artifacts["small"])
        self._screen.say(f"ended {duration(time.monotonic() - plugged_at)} after the node was back")

    async def _until_healthy(self, node: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self._system.node(node)).status is not NodeStatus.HEALTHY:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    # (d)

    async def the_run_is_in_temporal(self) -> None:
        self._screen.heading("4. The same story in the Temporal Web UI")
        self._screen.say("proves: nothing is hidden; each operation is a run that anybody can look into")
        seen = self._lines[0].seen
        if seen is None:
            return self._screen.check("the operation has a run", holds=False)
        workflow = (
            f"{self._system.temporal_ui_url}/api/v1/namespaces/default/workflows/{quote(seen.workflow_id, safe='')}"
        )
        async with httpx2.AsyncClient(trust_env=False) as http:
            described = (await http.get(workflow, params={"execution.runId": seen.run_id})).json()
        status = described.get("workflowExecutionInfo", {}).get("status", "unknown")
        self._screen.check(f"Temporal says {status}", holds=status == "WORKFLOW_EXECUTION_STATUS_COMPLETED")
        return self._screen.say(f"{seen.temporal_url}   (`nodesmith demo --keep` leaves it there)")

    # the count

    async def count(self) -> None:
        """Counted from the API, from what the nodes say and from their disks."""
        await self._look(self._lines)
        known = await self._system.operations()
        accepted = {line.op_id for line in self._lines}
        lost = len(accepted - set(known)) + sum([await self._is_missing(line) for line in self._lines])
        doubled = len(set(known) - accepted) + sum([await self._is_doubled(line) for line in self._lines])
        stuck = sum(line.state not in ENDED for line in self._lines)
        if lost or doubled or stuck:
            self._screen.failed.append("the count")
        self._screen.last(f"lost {lost}, doubled {doubled}, stuck {stuck}")

    async def _is_missing(self, line: Line) -> bool:
        """Succeeded, but not on the disk; or on the disk, but not succeeded."""
        artifact = next(one for one in self._artifacts.values() if one.size == line.total)
        on_disk = await asyncio.to_thread(self._system.has, line.node, line.name, artifact)
        return on_disk != (line.state == State.SUCCEEDED)

    async def _is_doubled(self, line: Line) -> bool:
        """Done twice: fetched as a whole twice, or a first one lies behind it as the previous version."""
        listed = [entry for entry in await self._system.listed(line.node) if entry.name == line.name]
        return _twice(line) >= line.total or len(listed) > 1 or any(entry.previous_digest for entry in listed)

    # following

    async def _ask(self, node: str, name: str, artifact: str) -> Line:
        """Ask for an install and follow it from now on."""
        wanted = self._artifacts[artifact]
        op_id = await self._system.install(node, name, self._source.uri(node, artifact), wanted)
        line = Line(node, name, op_id, wanted.size, self._source.counter(node, artifact))
        self._screen.say(f"{node}: operation {op_id}")
        self._lines.append(line)
        return line

    async def _watch(self, lines: Sequence[Line], done: Callable[[], bool]) -> None:
        """Show these until it is as wanted; a broken promise if that takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        with self._screen.live(lines, lambda: self._api_answers) as refresh:
            while not done() and time.monotonic() < deadline:
                await self._look(lines)
                refresh()
                await asyncio.sleep(_POLL_S)
        if not done():
            self._screen.check(f"what was waited for came within {PATIENCE_S:.0f} s", holds=False)

    async def _look(self, lines: Sequence[Line]) -> None:
        for line in lines:
            seen = await self._system.operation(line.op_id)
            self._api_answers = seen is not None
            line.seen = seen or line.seen

    def _check_install(self, line: Line, artifact: DemoArtifact) -> None:
        succeeded = line.state == State.SUCCEEDED
        right = self._system.has(line.node, line.name, artifact)
        self._screen.check(
            f"{line.node}: {line.state}, and the sha256 of what is on its disk is {'right' if right else 'wrong'}",
            holds=succeeded and right,
        )


def _twice(line: Line) -> int:
    return max(line.counter.sent - line.total, 0)


def _all_ended(lines: Sequence[Line]) -> bool:
    return all(line.state in ENDED for line in lines)

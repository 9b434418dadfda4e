"""The output of a running `up`: a status board on a terminal, plain lines elsewhere; never log lines."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from nodesmith.cli.output.render import hold_sentence
from nodesmith.stack.api import LocalApi
from nodesmith.stack.errors import StackError
from nodesmith.stack.processes.record import Condition, ProcessState

_REFRESH = 1.0
_COLOURS = {
    Condition.RUNNING: "green",
    Condition.STARTING: "yellow",
    Condition.RESTARTING: "red",
    Condition.STOPPING: "yellow",
    Condition.STOPPED: "dim",
}


@dataclass(frozen=True)
class FleetSummary:
    """Counts of nodes and operations, as the API reports them."""

    healthy: int
    nodes: int
    open_operations: int

    def sentence(self) -> str:
        return f"{self.healthy} of {self.nodes} nodes healthy, {self.open_operations} open operations"


def fetch_summary(api: LocalApi) -> dict[str, Any]:
    """Fetch the `fleet`, None while the API does not answer, and the `hold`, None without one."""
    try:
        nodes, hold = api.nodes(), api.hold()
    except StackError:
        return {"fleet": None, "hold": None}
    healthy = sum(node["status"] == "healthy" for node in nodes)
    fleet = FleetSummary(healthy, len(nodes), sum(node["open_operations"] for node in nodes))
    return {"fleet": asdict(fleet), "hold": hold if hold["held"] else None}


def summary_lines(found: dict[str, Any]) -> list[str]:
    """Format the result of `fetch_summary` as sentences."""
    if found["fleet"] is None:
        return ["The API does not answer."]
    hold = found["hold"]
    held = [hold_sentence(hold["by"], hold["reason"], datetime.fromisoformat(hold["since"]))] if hold else []
    return [FleetSummary(**found["fleet"]).sentence(), *held]


def table(states: list[ProcessState]) -> Table:
    laid_out = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("PROCESS", "STATE", "PID", "RESTARTS", "LAST END"):
        laid_out.add_column(title, no_wrap=True, overflow="ellipsis")
    for state in states:
        colour = _COLOURS[state.condition]
        laid_out.add_row(
            state.name,
            f"[{colour}]{state.condition}[/]",
            str(state.pid or "-"),
            str(state.restarts),
            escape(state.last_words),
        )
    return laid_out


async def show_board(
    console: Console, states: Callable[[], list[ProcessState]], api: LocalApi, stop: asyncio.Event
) -> None:
    """Redraw every second until `stop`."""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not stop.is_set():
            summary = summary_lines(await asyncio.to_thread(fetch_summary, api))
            lines = [*map(escape, summary), "[dim]Ctrl-C stops everything[/]"]
            live.update(Group(table(states()), "", *lines), refresh=True)
            await _pause(stop)


class ChangeLines:
    """Prints a line when a process dies, and one when it runs again."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._seen: dict[str, Condition] = {}
        self.enabled = False

    def __call__(self, states: list[ProcessState]) -> None:
        for state in states:
            before = self._seen.get(state.name)
            self._seen[state.name] = state.condition
            if self.enabled and before != state.condition:
                self._print_change(state)

    def _print_change(self, state: ProcessState) -> None:
        now = time.strftime("%H:%M:%S")
        if state.condition is Condition.RESTARTING:
            self._print_line(f"{now} {state.name} died ({state.last_words}); restarting it")
        elif state.condition is Condition.RUNNING:
            self._print_line(f"{now} {state.name} runs again (pid {state.pid}, restart {state.restarts})")


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFRESH):
            await stop.wait()

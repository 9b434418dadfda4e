"""What `up` shows while it runs: a quiet board on a terminal, plain lines on anything else. Never log lines."""

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

from cli.render import hold_sentence
from stack.api import LocalApi
from stack.errors import StackError
from stack.record import Condition, ProcessState

_REFRESH = 1.0
_COLOURS = {
    Condition.RUNNING: "green",
    Condition.STARTING: "yellow",
    Condition.RESTARTING: "red",
    Condition.STOPPING: "yellow",
    Condition.STOPPED: "dim",
}


@dataclass(frozen=True)
class Fleet:
    """What the API says of nodes and operations."""

    healthy: int
    nodes: int
    open_operations: int

    def sentence(self) -> str:
        return f"{self.healthy} of {self.nodes} nodes healthy, {self.open_operations} open operations"


def ask(api: LocalApi) -> dict[str, Any]:
    """The `fleet`, None while the API does not answer; and the `hold`, None without one."""
    try:
        nodes, hold = api.nodes(), api.hold()
    except StackError:
        return {"fleet": None, "hold": None}
    healthy = sum(node["status"] == "healthy" for node in nodes)
    fleet = Fleet(healthy, len(nodes), sum(node["open_operations"] for node in nodes))
    return {"fleet": asdict(fleet), "hold": hold if hold["held"] else None}


def sentences(found: dict[str, Any]) -> list[str]:
    """What `ask` found, for people."""
    if found["fleet"] is None:
        return ["The API does not answer."]
    hold = found["hold"]
    held = [hold_sentence(hold["by"], hold["reason"], datetime.fromisoformat(hold["since"]))] if hold else []
    return [Fleet(**found["fleet"]).sentence(), *held]


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
            said = sentences(await asyncio.to_thread(ask, api))
            lines = [*map(escape, said), "[dim]Ctrl-C stops everything[/]"]
            live.update(Group(table(states()), "", *lines), refresh=True)
            await _pause(stop)


class ChangeLines:
    """One line for each process that died, and one when it is back."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._seen: dict[str, Condition] = {}
        self.enabled = False

    def __call__(self, states: list[ProcessState]) -> None:
        for state in states:
            before = self._seen.get(state.name)
            self._seen[state.name] = state.condition
            if self.enabled and before != state.condition:
                self._tell_of(state)

    def _tell_of(self, state: ProcessState) -> None:
        now = time.strftime("%H:%M:%S")
        if state.condition is Condition.RESTARTING:
            self._tell(f"{now} {state.name} died ({state.last_words}); it is being restarted")
        elif state.condition is Condition.RUNNING:
            self._tell(f"{now} {state.name} runs again (pid {state.pid}, restart {state.restarts})")


async def _pause(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFRESH):
            await stop.wait()

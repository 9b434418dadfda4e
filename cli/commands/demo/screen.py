"""The demo's output: headings, a live table (lines without a terminal), and the result of each check."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from nodesmith.cli.commands.demo.source import Counter
from nodesmith.cli.output.render import colored, size
from nodesmith.contracts.http.operations import OperationDetail

_LINE_EVERY_S = 3.0
_BAR = 20


@dataclass
class Line:
    """One operation on one node."""

    node: str
    name: str
    op_id: str
    total: int
    counter: Counter
    seen: OperationDetail | None = None
    """the API's last answer"""

    @property
    def fetched(self) -> float:
        """The part that the source has sent, from 0 to 1; known even while all other processes are dead."""
        return min(self.counter.sent / self.total, 1.0)

    @property
    def state(self) -> str:
        return str(self.seen.state) if self.seen else "accepted"


class Screen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed_at = 0.0
        self.failed: list[str] = []

    def heading(self, text: str) -> None:
        self._console.print(f"\n[bold]{escape(text)}[/]")

    def print_line(self, text: str) -> None:
        self._console.print(f"  {escape(text)}", soft_wrap=True)

    def check(self, claim: str, *, holds: bool) -> None:
        """Print whether a promise was kept; a broken one makes the exit code 1."""
        if not holds:
            self.failed.append(claim)
        self._console.print(f"  {'[green]kept[/]  ' if holds else '[red]BROKEN[/]'} {escape(claim)}", soft_wrap=True)

    def conclude(self, text: str) -> None:
        self._console.print(f"\n[bold]{escape(text)}[/]", soft_wrap=True)

    @contextmanager
    def live(self, lines: Sequence[Line], api_answers: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """Show the operations while the block runs; the block calls the yielded function after each refresh."""
        if not self._console.is_terminal:
            yield lambda: self._print_periodically(lines, answers=api_answers())
            return
        with Live(
            get_renderable=lambda: _table(lines, answers=api_answers()), console=self._console, refresh_per_second=5
        ):
            yield lambda: None

    def _print_periodically(self, lines: Sequence[Line], *, answers: bool) -> None:
        now = time.monotonic()
        if now - self._printed_at >= _LINE_EVERY_S:
            self._printed_at = now
            each = "   ".join(f"{line.node} {line.fetched:4.0%} {line.state}" for line in lines)
            self.print_line(each if answers else f"{each}   (the API does not answer)")


def _table(lines: Sequence[Line], *, answers: bool) -> Table:
    laid_out = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    laid_out.add_column("  NODE", no_wrap=True)
    for title in ("SENT BY THE SOURCE", "", "STATE", "WHAT"):
        laid_out.add_column(title, no_wrap=title != "WHAT", overflow="ellipsis")
    for line in lines:
        what = line.seen.message if line.seen and answers else "the API does not answer; last known state"
        bar = ProgressBar(total=1.0, completed=line.fetched, width=_BAR)
        laid_out.add_row(f"  {line.node}", bar, size(line.counter.sent), colored(line.state), escape(what))
    return laid_out

"""What the audience sees: headings, a live table (or lines, where there is no terminal), and what was proved."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from cli.demo.source import Counter
from cli.render import size, word
from contracts.operation_http import OperationDetail

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
    """as the API described it when it last answered"""

    @property
    def fetched(self) -> float:
        """Which part the source has sent, from 0 to 1; known also while everything else is dead."""
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

    def say(self, text: str) -> None:
        self._console.print(f"  {escape(text)}", soft_wrap=True)

    def check(self, claim: str, *, holds: bool) -> None:
        """Say whether a promise was kept; one that was not decides the exit code."""
        if not holds:
            self.failed.append(claim)
        self._console.print(f"  {'[green]kept[/]  ' if holds else '[red]BROKEN[/]'} {escape(claim)}", soft_wrap=True)

    def last(self, text: str) -> None:
        self._console.print(f"\n[bold]{escape(text)}[/]", soft_wrap=True)

    @contextmanager
    def live(self, lines: Sequence[Line], api_answers: Callable[[], bool]) -> Iterator[Callable[[], None]]:
        """Show the operations while the block runs; it calls what it is given whenever it has looked again."""
        if not self._console.is_terminal:
            yield lambda: self._print_sometimes(lines, answers=api_answers())
            return
        with Live(
            get_renderable=lambda: _table(lines, answers=api_answers()), console=self._console, refresh_per_second=5
        ):
            yield lambda: None

    def _print_sometimes(self, lines: Sequence[Line], *, answers: bool) -> None:
        now = time.monotonic()
        if now - self._printed_at >= _LINE_EVERY_S:
            self._printed_at = now
            each = "   ".join(f"{line.node} {line.fetched:4.0%} {line.state}" for line in lines)
            self.say(each if answers else f"{each}   (the API does not answer)")


def _table(lines: Sequence[Line], *, answers: bool) -> Table:
    laid_out = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    laid_out.add_column("  NODE", no_wrap=True)
    for title in ("SENT BY THE SOURCE", "", "STATE", "WHAT"):
        laid_out.add_column(title, no_wrap=title != "WHAT", overflow="ellipsis")
    for line in lines:
        what = line.seen.message if line.seen and answers else "the API does not answer; last known state"
        bar = ProgressBar(total=1.0, completed=line.fetched, width=_BAR)
        laid_out.add_row(f"  {line.node}", bar, size(line.counter.sent), word(line.state), escape(what))
    return laid_out

"""How things look on a terminal: sizes, times, and tables that read well at 80 columns and at 200."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from domain.node import NodeStatus
from domain.operation import State

PIPE_WIDTH = 200
"""a pipe has no width, and grep wants whole words"""

COLOURS: dict[str, str] = {
    NodeStatus.HEALTHY: "green",
    NodeStatus.UNHEALTHY: "red",
    NodeStatus.OFFLINE: "red",
    NodeStatus.PENDING: "yellow",
    NodeStatus.DRAINING: "yellow",
    State.SUCCEEDED: "green",
    State.RUNNING: "cyan",
    State.STILL_INSTALLING: "cyan",
    State.WAITING: "yellow",
    State.CANCELLING: "yellow",
    State.FAILED: "red",
    State.EXPIRED: "red",
    State.DEAD_LETTER: "red",
}

Row = TypeVar("Row")


class Shape(Protocol):
    """What comes from the API. (pydantic itself would be a fifth of the time that `up` takes to load.)"""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


Model = TypeVar("Model", bound=Shape)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column; `from_width` is the narrowest terminal that has room for it."""

    title: str
    value: Callable[[Row], str]
    from_width: int = 0
    right: bool = False
    may_wrap: bool = False


def make_console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def show(console: Console, content: RenderableType) -> None:
    """Print; a pipe gets no padding at the ends of lines. What may not be broken is longer than the screen is wide."""
    if console.is_terminal:
        console.print(content, crop=False)
        return
    with console.capture() as captured:
        console.print(content, crop=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False, soft_wrap=True)


def table(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int) -> Table:
    """Lay out the columns that fit; what is left out is in `show` and in `--json`."""
    laid_out = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown = [column for column in columns if column.from_width <= width]
    for column in shown:
        laid_out.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.may_wrap,
            overflow="fold" if column.may_wrap else "ellipsis",
        )
    for row in rows:
        laid_out.add_row(*(column.value(row) for column in shown))
    return laid_out


def show_list(rows: Sequence[Model], columns: Sequence[Column[Model]], *, as_json: bool, nothing: str = "") -> None:
    """A list as JSON, as a table, or the sentence that says why it is empty."""
    if as_json:
        return print_json(rows)
    console = make_console()
    return show(console, table(rows, columns, console.width) if rows or not nothing else nothing)


def facts(pairs: Sequence[tuple[str, str]]) -> Table:
    """Two columns: what, and its value; pairs without a value are left out."""
    laid_out = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    laid_out.add_column(style="bold", no_wrap=True)
    laid_out.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            laid_out.add_row(name, value)
    return laid_out


def print_json(value: Shape | Sequence[Shape] | dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(_plain(value), indent=2) + "\n")


def print_json_line(value: Shape | dict[str, Any]) -> None:
    """One object a line, at once: a reader at the other end of a pipe follows along."""
    sys.stdout.write(json.dumps(_plain(value)) + "\n")
    sys.stdout.flush()


def _plain(value: Shape | Sequence[Shape] | dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return value
    if isinstance(value, Sequence):
        return [item.model_dump(mode="json") for item in value]
    return value.model_dump(mode="json")


def word(value: str) -> str:
    """A status or state in its colour."""
    colour = COLOURS.get(value, "")
    return f"[{colour}]{escape(value)}[/]" if colour else escape(value)


def size(count: float | None) -> str:
    """Bytes for people: 0 B, 512 B, 1.5 kB, 200 MB."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:  # noqa: PLR2004 - the next unit begins where three digits end
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"  # noqa: PLR2004
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float | None) -> str:
    """Seconds for people: 0.4 s, 42 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
    if seconds is None:
        return ""
    if seconds < 9.95:  # noqa: PLR2004 - tenths matter below ten seconds
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min {rest:02} s"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes:02} min"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    if moment is None:
        return "never"
    return f"{duration(max(0.0, ((now or datetime.now(UTC)) - moment).total_seconds()))} ago"


def hold_sentence(by: str, reason: str, since: datetime | None) -> str:
    return f"Held since {local_time(since)} by {by}: {reason}\n  let it go:  nodesmith release"


def local_time(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z") if moment else ""

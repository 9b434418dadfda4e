"""Formats sizes, times and tables for the terminal, readable at 80 columns and at 200."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from nodesmith.cli.output.terminal import safe, write_json
from nodesmith.domain.node import NodeStatus
from nodesmith.domain.operation import State

PIPE_WIDTH = 200
"""a pipe has no width, and lines must not be broken for grep"""

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
    """An API model, as a protocol: importing pydantic would take a fifth of the load time of `up`."""

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


class SafeConsole(Console):
    """Rich's console with unsafe characters escaped: strings before they are measured, the rest when rendered."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(safe(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(safe(segment.text), segment.style)


def make_console(**options: Any) -> SafeConsole:
    return SafeConsole(**{"width": None if sys.stdout.isatty() else PIPE_WIDTH, **options})


def show(console: Console, content: RenderableType) -> None:
    """Print without cropping, so that unbreakable values may exceed the width; a pipe gets no trailing padding."""
    if console.is_terminal:
        console.print(content, crop=False)
        return
    with console.capture() as captured:
        console.print(content, crop=False)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), markup=False, soft_wrap=True)


def table(rows: Sequence[Row], columns: Sequence[Column[Row]], width: int) -> Table:
    """Lay out the columns that fit the width; `show` and `--json` have the others."""
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


def show_list(
    rows: Sequence[Model], columns: Sequence[Column[Model]], *, as_json: bool, empty_message: str = ""
) -> None:
    """Print a list as JSON or as a table; print `empty_message` for an empty one."""
    if as_json:
        return print_json(rows)
    console = make_console()
    return show(console, table(rows, columns, console.width) if rows or not empty_message else empty_message)


def facts(pairs: Sequence[tuple[str, str]]) -> Table:
    """Lay out names and values in two columns, without the pairs that have no value."""
    laid_out = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    laid_out.add_column(style="bold", no_wrap=True)
    laid_out.add_column(overflow="fold")
    for name, value in pairs:
        if value:
            laid_out.add_row(name, value)
    return laid_out


def print_json(value: Shape | Sequence[Shape] | dict[str, Any]) -> None:
    write_json(json.dumps(_plain(value), indent=2))


def print_json_line(value: Shape | dict[str, Any]) -> None:
    """Print one object per line and flush, so that the reader of a pipe can follow."""
    write_json(json.dumps(_plain(value)))


def _plain(value: Shape | Sequence[Shape] | dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return value
    if isinstance(value, Sequence):
        return [item.model_dump(mode="json") for item in value]
    return value.model_dump(mode="json")


def colored(value: str) -> str:
    """Return a status or state with its colour markup."""
    colour = COLOURS.get(value, "")
    return f"[{colour}]{escape(value)}[/]" if colour else escape(value)


def size(count: float | None) -> str:
    """Format bytes: 0 B, 512 B, 1.5 kB, 200 MB."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:  # noqa: PLR2004 - the next unit begins where three digits end
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"  # noqa: PLR2004
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float | None) -> str:
    """Format seconds: 0.4 s, 42 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
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
    return f"Held since {local_time(since)} by {by}: {reason}\n  release it:  nodesmith release"


def local_time(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z") if moment else ""

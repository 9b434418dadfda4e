"""Watches one operation until it ends: a live bar on a terminal, lines in a pipe, JSON lines for programs."""

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from nodesmith.cli.errors import INTERRUPTED, NOT_DONE
from nodesmith.cli.output.render import SafeConsole, colored, duration, print_json_line, size
from nodesmith.cli.output.terminal import print_line
from nodesmith.client import Client, LinkLost
from nodesmith.client.following import Update
from nodesmith.contracts.http.operations import (
    OperationDetail,
    OperationEvent,
    OperationView,
    ProgressTick,
    ProgressView,
)
from nodesmith.contracts.outcome_words import was_only_started
from nodesmith.contracts.words import tell
from nodesmith.domain.operation import Reason, State

_STEP = 10.0
"""per cent between two lines of progress in a pipe"""


class WatchView(Protocol):
    """Receives the updates of an operation."""

    def state(self, operation: OperationDetail) -> None: ...
    def tick(self, progress: ProgressView) -> None: ...
    def lost(self, why: str) -> None: ...


def watch(api: Client, op_id: str, *, as_json: bool, is_known_to_exist: bool = False) -> int:
    """Watch until the operation ends and return the exit code; Ctrl-C ends the watching, not the operation."""
    updates = api.watch(op_id, is_known_to_exist=is_known_to_exist)
    try:
        return _exit_code(_as_json_lines(updates) if as_json else _on_screen(updates))
    except KeyboardInterrupt:
        print_line(detached_message(op_id), err=True)
        return INTERRUPTED


def detached_message(op_id: str) -> str:
    return (
        f"\nNo longer watching. Operation {op_id} continues.\n"
        f"  watch it again:  nodesmith ops watch {op_id}\n"
        f"  cancel it:       nodesmith ops cancel {op_id}"
    )


def _exit_code(last: OperationDetail | None) -> int:
    return 0 if last is not None and last.state is State.SUCCEEDED else NOT_DONE


def _as_json_lines(updates: Iterable[Update]) -> OperationDetail | None:
    last = None
    for item in updates:
        if isinstance(item, OperationDetail):
            last = item
            print_json_line({"type": "operation", **item.model_dump(mode="json")})
        elif isinstance(item, ProgressTick):
            print_json_line({"type": "progress", **item.model_dump(mode="json")})
        else:
            print_json_line({"type": "link_lost", "why": item.why})
    return last


def _on_screen(updates: Iterable[Update]) -> OperationDetail | None:
    console = SafeConsole()
    if console.is_terminal:
        with _bar(console) as progress:
            last = show(updates, BarView(progress))
    else:
        last = show(updates, LineView(console))
    if last is not None:
        console.print(summary(last), soft_wrap=True)
    return last


def show(updates: Iterable[Update], screen: WatchView) -> OperationDetail | None:
    """Pass each update to the screen, without repeated headlines; return the last view of the operation."""
    last, shown = None, ""
    for item in updates:
        if isinstance(item, LinkLost):
            screen.lost(item.why)
        elif isinstance(item, ProgressTick):
            screen.tick(item)
        else:
            last, before, shown = item, shown, headline(item)
            if shown != before:
                screen.state(item)
            screen.tick(item.progress)
    return last


def headline(operation: OperationDetail) -> str:
    text = describe_change(operation)
    if operation.until is None or operation.reason is Reason.BACK_OFF:
        return text
    return f"{text}, until {operation.until.astimezone():%Y-%m-%d %H:%M:%S}"


def describe_change(change: OperationView | OperationEvent) -> str:
    """Return the API's message; the time of the next attempt is shown in the user's time zone."""
    if change.message and change.reason is not Reason.BACK_OFF:
        return change.message
    return tell(change.state, change.reason, change.detail, until=change.until, zone=None)


def summary(operation: OperationDetail) -> str:
    """Describe the outcome, and the remedy after a failure."""
    name = f"{operation.kind} {operation.backend} {operation.version}".rstrip()
    where = f"on {operation.node_name}"
    took = ""
    if operation.ended_at:
        took = f" after {duration((operation.ended_at - operation.created_at).total_seconds())}"
    line = f"{colored(operation.state)}: {escape(name)} {escape(where)}{took}"
    if operation.state is State.SUCCEEDED:
        return f"{line}; {escape(_what_changed(operation))}"
    remedy = f"\n  {escape(operation.remedy)}" if operation.remedy else ""
    return f"{line}: {escape(headline(operation))}{remedy}"


def _what_changed(operation: OperationDetail) -> str:
    if operation.changed is False:
        return "nothing changed: it was already installed"
    if was_only_started(operation.before, operation.after):
        return "started: it was already installed"
    before = f" (was {operation.before.version})" if operation.before and operation.before.version else ""
    reused = f", {size(operation.bytes_reused)} reused" if operation.bytes_reused else ""
    return f"{size(operation.bytes_fetched)} fetched{reused}{before}"


class LineView:
    """For a pipe or a log: one line per change, and one per `step` per cent."""

    def __init__(self, console: Console, *, step: float | None = _STEP) -> None:
        self._console = console
        self._step = step
        self._next = step or 0.0
        self._is_lost = False

    def state(self, operation: OperationDetail) -> None:
        self._report_reconnect()
        self._print_line(headline(operation))

    def tick(self, progress: ProgressView) -> None:
        self._report_reconnect()
        if self._step and progress.phase is not None and progress.percentage >= self._next:
            self._print_line(gauge(progress))
            self._next = (progress.percentage // self._step + 1) * self._step

    def lost(self, why: str) -> None:
        if not self._is_lost:
            self._print_line(f"no answer from the API ({why}); the operation continues, retrying")
        self._is_lost = True

    def _report_reconnect(self) -> None:
        if self._is_lost:
            self._print_line("the API answers again")
        self._is_lost = False

    def _print_line(self, text: str) -> None:
        self._console.print(f"{datetime.now():%H:%M:%S}  {escape(text)}", soft_wrap=True)  # noqa: DTZ005 - local time


class BarView:
    """For a terminal: one live line below the history of states."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=100.0, text="")
        self._lines = LineView(progress.console, step=None)
        self._state = ""

    def state(self, operation: OperationDetail) -> None:
        self._lines.state(operation)
        self._state = operation.state.value
        self._progress.update(self._task, description=self._state)

    def tick(self, progress: ProgressView) -> None:
        self._lines.tick(progress)
        text = gauge(progress) if progress.phase else ""
        self._progress.update(self._task, description=self._state, completed=progress.percentage, text=text)

    def lost(self, why: str) -> None:
        self._lines.lost(why)
        self._progress.update(self._task, description="no connection")


def gauge(progress: ProgressView) -> str:
    """Format `downloading  120 MB of 200 MB  8.0 MB/s  10 s left`, without the unknown parts."""
    parts = [str(progress.phase or "")]
    if progress.bytes_total:
        parts.append(f"{size(progress.bytes_done)} of {size(progress.bytes_total)}")
    if progress.rate:
        parts.append(f"{size(progress.rate)}/s")
    if progress.eta_s is not None:
        parts.append(f"{duration(progress.eta_s)} left")
    return "  ".join(parts)


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[text]}"),
        console=console,
        transient=True,
    )

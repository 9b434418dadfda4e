"""Watching one operation until it ends: a live bar on a terminal, lines in a pipe, JSON lines for programs."""

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from cli.client import ApiClient
from cli.failures import INTERRUPTED, NOT_DONE
from cli.follow import LinkLost, News, follow
from cli.render import duration, print_json_line, size, word
from contracts.operation_http import OperationDetail, OperationEvent, OperationView, ProgressTick, ProgressView
from contracts.outcome_words import was_only_started
from contracts.words import tell
from domain.operation import Reason, State

_STEP = 10.0
"""per cent between two lines of progress in a pipe"""


class Screen(Protocol):
    """Where news of an operation goes."""

    def state(self, operation: OperationDetail) -> None: ...
    def tick(self, progress: ProgressView) -> None: ...
    def lost(self, why: str) -> None: ...


def watch(api: ApiClient, op_id: str, *, as_json: bool, patient: bool = False) -> int:
    """Watch to the end and return the exit code; Ctrl-C ends the watching, never the operation."""
    news = follow(api, op_id, patient=patient)
    try:
        return _exit_code(_as_json_lines(news) if as_json else _on_screen(news))
    except KeyboardInterrupt:
        sys.stderr.write(goes_on(op_id))
        return INTERRUPTED


def goes_on(op_id: str) -> str:
    return (
        f"\nNo longer watching. Operation {op_id} goes on.\n"
        f"  watch it again:  nodesmith ops watch {op_id}\n"
        f"  cancel it:       nodesmith ops cancel {op_id}\n"
    )


def _exit_code(last: OperationDetail | None) -> int:
    return 0 if last is not None and last.state is State.SUCCEEDED else NOT_DONE


def _as_json_lines(news: Iterable[News]) -> OperationDetail | None:
    last = None
    for item in news:
        if isinstance(item, OperationDetail):
            last = item
            print_json_line({"type": "operation", **item.model_dump(mode="json")})
        elif isinstance(item, ProgressTick):
            print_json_line({"type": "progress", **item.model_dump(mode="json")})
        else:
            print_json_line({"type": "link_lost", "why": item.why})
    return last


def _on_screen(news: Iterable[News]) -> OperationDetail | None:
    console = Console(highlight=False)
    if console.is_terminal:
        with _bar(console) as progress:
            last = show(news, Bar(progress))
    else:
        last = show(news, Lines(console))
    if last is not None:
        console.print(summary(last), soft_wrap=True)
    return last


def show(news: Iterable[News], screen: Screen) -> OperationDetail | None:
    """Hand each piece of news on, leaving out what says nothing new; return the last view."""
    last, said = None, ""
    for item in news:
        if isinstance(item, LinkLost):
            screen.lost(item.why)
        elif isinstance(item, ProgressTick):
            screen.tick(item)
        else:
            last, before, said = item, said, headline(item)
            if said != before:
                screen.state(item)
            screen.tick(item.progress)
    return last


def headline(operation: OperationDetail) -> str:
    said = told(operation)
    if operation.until is None or operation.reason is Reason.BACK_OFF:
        return said
    return f"{said}, until {operation.until.astimezone():%Y-%m-%d %H:%M:%S}"


def told(change: OperationView | OperationEvent) -> str:
    """What the API says of it; the time of the next try is told by the reader's clock."""
    if change.message and change.reason is not Reason.BACK_OFF:
        return change.message
    return tell(change.state, change.reason, change.detail, until=change.until, zone=None)


def summary(operation: OperationDetail) -> str:
    """The last word: what came of it, and what to do if it went wrong."""
    name = f"{operation.kind} {operation.backend} {operation.version}".rstrip()
    where = f"on {operation.node_name}"
    took = ""
    if operation.ended_at:
        took = f" after {duration((operation.ended_at - operation.created_at).total_seconds())}"
    line = f"{word(operation.state)}: {escape(name)} {escape(where)}{took}"
    if operation.state is State.SUCCEEDED:
        return f"{line}; {escape(_what_changed(operation))}"
    remedy = f"\n  {escape(operation.remedy)}" if operation.remedy else ""
    return f"{line}: {escape(headline(operation))}{remedy}"


def _what_changed(operation: OperationDetail) -> str:
    if operation.changed is False:
        return "nothing changed: it was there already"
    if was_only_started(operation.before, operation.after):
        return "started: it was installed already"
    before = f" (was {operation.before.version})" if operation.before and operation.before.version else ""
    reused = f", {size(operation.bytes_reused)} reused" if operation.bytes_reused else ""
    return f"{size(operation.bytes_fetched)} fetched{reused}{before}"


class Lines:
    """For a pipe or a log: a line for each change, and one each `step` per cent."""

    def __init__(self, console: Console, *, step: float | None = _STEP) -> None:
        self._console = console
        self._step = step
        self._next = step or 0.0
        self._is_lost = False

    def state(self, operation: OperationDetail) -> None:
        self._found()
        self._say(headline(operation))

    def tick(self, progress: ProgressView) -> None:
        self._found()
        if self._step and progress.phase is not None and progress.percentage >= self._next:
            self._say(gauge(progress))
            self._next = (progress.percentage // self._step + 1) * self._step

    def lost(self, why: str) -> None:
        if not self._is_lost:
            self._say(f"no answer from the API ({why}); the operation goes on, asking again")
        self._is_lost = True

    def _found(self) -> None:
        if self._is_lost:
            self._say("the API answers again")
        self._is_lost = False

    def _say(self, text: str) -> None:
        self._console.print(f"{datetime.now():%H:%M:%S}  {escape(text)}", soft_wrap=True)  # noqa: DTZ005 - the reader's clock


class Bar:
    """For a terminal: one live line, and the history of states above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=100.0, text="")
        self._lines = Lines(progress.console, step=None)
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
        self._progress.update(self._task, description="no link")


def gauge(progress: ProgressView) -> str:
    """`downloading  120 MB of 200 MB  8.0 MB/s  10 s left`, as far as it is known."""
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

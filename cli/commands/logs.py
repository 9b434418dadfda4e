"""`nodesmith backends logs|stop`: prints a backend's output on a node, and stops its processes."""

import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from nodesmith.cli.client import ApiClient, read, segment
from nodesmith.cli.errors import INTERRUPTED, CommandFailed
from nodesmith.cli.follow import LinkLost, back_off
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import OnNode, Reason
from nodesmith.cli.output.render import print_json, print_json_line
from nodesmith.cli.output.terminal import print_line, print_raw
from nodesmith.contracts.http.models import LONGEST_WAIT_S, MOST_LINES, LogsPage
from nodesmith.contracts.http.operations import StopBody
from nodesmith.contracts.http.shared import Message

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Backend or model, or one process of it: NAME#REPLICA.", show_default=False),
]


def register(backends: typer.Typer) -> None:
    backends.command("logs")(grouped(logs))
    backends.command("stop")(grouped(stop))


def logs(
    name: Name,
    *,
    on: OnNode,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=MOST_LINES, help="Print at most this many.")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print unchanged: escape codes reach your terminal.")] = False,
    link: Link,
) -> None:
    """Print the last lines of a backend's output on a node, even if it has stopped."""
    path = f"/api/nodes/{segment(on)}/backends/{segment(name)}/logs"
    with link.api() as api:
        if not follow:
            page = read(LogsPage, api.get(path, lines=lines))
            return print_json(page) if link.as_json else _print(page, raw=raw)
        try:
            for update in follow_logs(api, path, lines):
                _print_update(update, as_json=link.as_json, raw=raw)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    return None


def follow_logs(
    api: ApiClient, path: str, lines: int, *, pause: Callable[[float], None] = time.sleep
) -> Iterator[LogsPage | LinkLost]:
    """Yield the last lines, then new ones without end; retry while the node or the API does not answer."""
    page = read(LogsPage, api.get(path, lines=lines))
    yield page
    waits = back_off()
    while True:
        try:
            page = read(LogsPage, api.get(path, cursor=page.cursor, wait_s=int(LONGEST_WAIT_S), lines=MOST_LINES))
        except CommandFailed as failure:
            if not failure.is_retryable:
                raise
            yield LinkLost(failure.sentence)
            pause(max(next(waits), failure.retry_after_s))
            continue
        waits = back_off()
        if page.lines:
            yield page


def _print_update(update: LogsPage | LinkLost, *, as_json: bool, raw: bool) -> None:
    if isinstance(update, LinkLost):
        print_line(f"{update.why} Retrying.", err=True)
    elif as_json:
        print_json_line(update.model_dump(mode="json", exclude={"keys"}))
    else:
        _print(update, raw=raw)


def _print(page: LogsPage, *, raw: bool) -> None:
    for line in page.lines:
        print_raw(line) if raw else print_line(line)


def stop(
    name: Name,
    *,
    on: OnNode,
    force: Annotated[bool, typer.Option("--force", help="Kill at once, without a grace period.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Stop the processes of a backend on a node. Its files stay on the disk."""
    body = StopBody.model_construct(backend=name, force=force, reason=reason or "")
    with link.api() as api:
        answer = read(Message, api.post(f"/api/nodes/{segment(on)}/backends/stop", body))
    print_json(answer) if link.as_json else print_line(f"{answer.message}.")

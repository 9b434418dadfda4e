"""`nodesmith backends logs|stop`: prints a backend's output on a node, and stops its processes."""

from typing import Annotated

import typer

from nodesmith.cli.errors import INTERRUPTED
from nodesmith.cli.option_groups import Link, given, grouped
from nodesmith.cli.options import OnNode, Reason
from nodesmith.cli.output.render import print_json, print_json_line
from nodesmith.cli.output.terminal import print_line, print_raw
from nodesmith.client import LinkLost
from nodesmith.contracts.http.models import MOST_LINES, LogsPage
from nodesmith.contracts.http.operations import StopBody

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
    with link.api() as api:
        if not follow:
            page = api.nodes.logs(on, name, lines=lines)
            return print_json(page) if link.as_json else _print(page, raw=raw)
        try:
            for update in api.watch_logs(on, name, lines=lines):
                _print_update(update, as_json=link.as_json, raw=raw)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    return None


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
    reason: Reason = "",
    link: Link,
) -> None:
    """Stop the processes of a backend on a node. Its files stay on the disk."""
    order = StopBody.model_construct(backend=name, **given(force=force, reason=reason))
    with link.api() as api:
        answer = api.nodes.stop_backend(on, order)
    print_json(answer) if link.as_json else print_line(f"{answer.message}.")

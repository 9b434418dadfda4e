"""`nodesmith backends logs|stop`: what a backend writes on a node, and ending what runs of it."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from cli.client import ApiClient, read, segment
from cli.failures import INTERRUPTED, CommandFailed
from cli.follow import LinkLost, pauses
from cli.grouped import Link, grouped
from cli.options import OnNode, Reason
from cli.render import print_json, print_json_line
from contracts.http import Message
from contracts.models_http import LONGEST_WAIT_S, MOST_LINES, LogsPage
from contracts.operation_http import StopBody

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
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=MOST_LINES, help="At most so many.")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with whatever comes, until Ctrl-C.")] = False,
    link: Link,
) -> None:
    """Print the end of what a backend wrote on a node; also of one that has ended."""
    path = f"/api/nodes/{segment(on)}/backends/{segment(name)}/logs"
    with link.api() as api:
        if not follow:
            page = read(LogsPage, api.get(path, lines=lines))
            return print_json(page) if link.as_json else _print(page)
        try:
            for news in followed(api, path, lines):
                _tell(news, as_json=link.as_json)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    return None


def followed(
    api: ApiClient, path: str, lines: int, *, pause: Callable[[float], None] = time.sleep
) -> Iterator[LogsPage | LinkLost]:
    """The tail, then what comes, without end; a node or an API that is away for a while is asked again."""
    page = read(LogsPage, api.get(path, lines=lines))
    yield page
    waits = pauses()
    while True:
        try:
            page = read(LogsPage, api.get(path, cursor=page.cursor, wait_s=int(LONGEST_WAIT_S), lines=MOST_LINES))
        except CommandFailed as failure:
            if not failure.may_pass:
                raise
            yield LinkLost(failure.sentence)
            pause(next(waits))
            continue
        waits = pauses()
        if page.lines:
            yield page


def _tell(news: LogsPage | LinkLost, *, as_json: bool) -> None:
    if isinstance(news, LinkLost):
        sys.stderr.write(f"{news.why} Trying again.\n")
    elif as_json:
        print_json_line(news.model_dump(mode="json", exclude={"keys"}))
    else:
        _print(news)


def _print(page: LogsPage) -> None:
    for line in page.lines:
        typer.echo(line)


def stop(
    name: Name,
    *,
    on: OnNode,
    force: Annotated[bool, typer.Option("--force", help="At once, without seconds of grace.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Tell a node to end what runs of a backend. Nothing on its disk changes."""
    body = StopBody.model_construct(backend=name, force=force, reason=reason or "")
    with link.api() as api:
        told = read(Message, api.post(f"/api/nodes/{segment(on)}/backends/stop", body))
    print_json(told) if link.as_json else typer.echo(f"{told.message}.")

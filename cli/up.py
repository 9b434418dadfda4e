"""`up`, `down` and `status`: the whole system on this machine."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.markup import escape

from cli import board
from cli.failures import CommandFailed
from cli.options import Home as HomeOption
from cli.options import Json
from cli.render import make_console, print_json_line
from cli.running import Quiet, Terminal, View, run_attached, run_detached
from stack import record
from stack.api import LocalApi
from stack.errors import StackError
from stack.home import Home, find_home
from stack.lock import holder
from stack.up import Options

_MOST_AGENTS = 100
_STOP_PATIENCE = 60.0
_POLL = 0.05

Agents = Annotated[int, typer.Option("--agents", min=0, max=_MOST_AGENTS, help="How many local agents to start.")]
PortBase = Annotated[
    int | None,
    typer.Option(
        "--port-base",
        help="Use exactly the ten ports from here on: API, Temporal, its Web UI, NATS, PostgreSQL, and five more.",
        show_default=False,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDR",
        help="Open API and NATS for other machines on this address, with TLS; Temporal and PostgreSQL never.",
        show_default=False,
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Return when everything is ready; `down` stops it.")]


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command()(status)


def up(
    *,
    home: HomeOption = None,
    agents: Agents = 3,
    port_base: PortBase = None,
    listen: Listen = None,
    detach: Detach = False,
    as_json: Json = False,
) -> None:
    """Start the whole system on this machine: servers, API, worker and local agents."""
    options = Options(find_home(home), agents, port_base, listen)
    view: View = Quiet() if as_json else Terminal()
    with _as_failure():
        if detach:
            run_detached(options, view)
        else:
            asyncio.run(run_attached(options, view))


def down(*, home: HomeOption = None, as_json: Json = False) -> None:
    """Stop what `up` started on this home, in reverse order."""
    place = Home(find_home(home))
    pid = holder(place.lock_file)
    if pid is not None:
        _end(place, pid)
    if as_json:
        print_json_line({"home": str(place.folder), "stopped": pid})
    else:
        typer.echo(f"Nothing runs on {place.folder}." if pid is None else f"Stopped (pid {pid}).")


def status(*, home: HomeOption = None, as_json: Json = False) -> None:
    """Say what runs on this home, and where; exit code 1 when nothing does."""
    place = Home(find_home(home))
    found = _look(place)
    if as_json:
        print_json_line(found)
    else:
        _print_status(place, found)
    if not found["running"]:
        raise typer.Exit(1)


def _look(place: Home) -> dict[str, Any]:
    pid = holder(place.lock_file)
    connection = place.connection()
    running = pid is not None and connection is not None
    found = board.ask(LocalApi(connection)) if running and connection else {"fleet": None, "hold": None}
    return {
        "home": str(place.folder),
        "running": running,
        "pid": pid,
        "url": connection.url if connection else "",
        "temporal_ui_url": connection.temporal_ui_url if connection else "",
        "processes": [asdict(process) for process in record.observed(place.processes_file)] if running else [],
        **found,
        "logs": str(place.logs),
    }


def _print_status(place: Home, found: dict[str, Any]) -> None:
    if not found["running"]:
        typer.echo(f"Nothing runs on {place.folder}. Start it with `nodesmith up`.")
        return
    tell_status(make_console(), place, found)


def tell_status(console: Console, place: Home, found: dict[str, Any]) -> None:
    """Addresses and paths are not broken at the edge: somebody may copy them."""
    above = f"Nodesmith runs on {place.folder} (pid {found['pid']}), API at {found['url']}"
    console.print(escape(above), soft_wrap=True)
    console.print(board.table(record.observed(place.processes_file)))
    for line in (*board.sentences(found), f"Logs in {found['logs']}"):
        console.print(escape(line), soft_wrap=True)


def _end(place: Home, pid: int) -> None:
    _terminate(pid)
    if not _wait_for_end(place, pid):
        raise CommandFailed(
            f"Nodesmith (pid {pid}) has not stopped within {_STOP_PATIENCE:.0f} s.",
            f"`kill -9 {pid}` ends it and all its children; nothing that was accepted is lost.",
            code="still_running",
        )


def _terminate(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise CommandFailed(
            f"Nodesmith (pid {pid}) belongs to another user.", "Become that user, or root.", code="not_allowed"
        ) from error


def _wait_for_end(place: Home, pid: int) -> bool:
    deadline = time.monotonic() + _STOP_PATIENCE
    while time.monotonic() < deadline:
        if holder(place.lock_file) != pid and _has_ended(pid):
            return True
        time.sleep(_POLL)
    return False


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except StackError as error:
        raise CommandFailed(error.message, error.remedy, code=error.code) from error

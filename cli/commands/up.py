"""`up`, `down` and `status`: start, stop and inspect the whole system on this machine."""

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

from nodesmith.cli.commands.up_session import JsonView, TerminalView, UpView, run_attached, run_detached
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.options import Home as HomeOption
from nodesmith.cli.options import Json
from nodesmith.cli.output import board
from nodesmith.cli.output.render import make_console, print_json_line
from nodesmith.cli.output.terminal import print_line
from nodesmith.domain.access import Role
from nodesmith.stack.api import LocalApi
from nodesmith.stack.errors import StackError
from nodesmith.stack.home import Home, find_home
from nodesmith.stack.lock import holder
from nodesmith.stack.processes import record
from nodesmith.stack.up import Options

_MOST_AGENTS = 100
_STOP_PATIENCE = 60.0
_POLL = 0.05

Agents = Annotated[int, typer.Option("--agents", min=0, max=_MOST_AGENTS, help="Number of local agents.")]
PortBase = Annotated[
    int | None,
    typer.Option(
        "--port-base",
        help="Use exactly the ten ports from this one on: API, Temporal, its Web UI, NATS, PostgreSQL and five more.",
        show_default=False,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDR",
        help="Open API, gateway, Temporal Web UI and NATS to other machines on this address, with TLS.",
        show_default=False,
    ),
]
AllowUri = Annotated[
    Role | None,
    typer.Option(
        "--allow-uri",
        help="Lowest role that may install by URI: admin (default) or operator. Same as NODESMITH_URI_INSTALLS.",
        show_default=False,
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background and return when ready; `down` stops it.")]


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
    allow_uri: AllowUri = None,
    detach: Detach = False,
    as_json: Json = False,
) -> None:
    """Start the whole system on this machine: servers, API, worker, gateway and local agents."""
    if allow_uri is not None:
        os.environ["NODESMITH_URI_INSTALLS"] = allow_uri  # the api inherits it
    options = Options(find_home(home), agents, port_base, listen)
    view: UpView = JsonView() if as_json else TerminalView()
    with _convert_stack_errors():
        if detach:
            run_detached(options, view)
        else:
            asyncio.run(run_attached(options, view))


def down(*, home: HomeOption = None, as_json: Json = False) -> None:
    """Stop the system of this home, in reverse order of its start."""
    place = Home(find_home(home))
    pid = holder(place.lock_file)
    if pid is not None:
        _stop(place, pid)
    if as_json:
        print_json_line({"home": str(place.folder), "stopped": pid})
    else:
        print_line(f"Nothing runs on {place.folder}." if pid is None else f"Stopped (pid {pid}).")


def status(*, home: HomeOption = None, as_json: Json = False) -> None:
    """Show the processes and addresses of this home; the exit code is 1 if it is not running."""
    place = Home(find_home(home))
    found = _collect_status(place)
    if as_json:
        print_json_line(found)
    else:
        _print_status(place, found)
    if not found["running"]:
        raise typer.Exit(1)


def _collect_status(place: Home) -> dict[str, Any]:
    pid = holder(place.lock_file)
    connection = place.connection()
    running = pid is not None and connection is not None
    found = board.fetch_summary(LocalApi(connection)) if running and connection else {"fleet": None, "hold": None}
    return {
        "home": str(place.folder),
        "running": running,
        "pid": pid,
        "url": connection.url if connection else "",
        "temporal_ui_url": connection.temporal_ui_url if connection else "",
        "gateway_url": connection.gateway_url if connection else "",
        "processes": [asdict(process) for process in record.read_current(place.processes_file)] if running else [],
        **found,
        "logs": str(place.logs),
    }


def _print_status(place: Home, found: dict[str, Any]) -> None:
    if not found["running"]:
        print_line(f"Nothing runs on {place.folder}. Start it with `nodesmith up`.")
        return
    render_status(make_console(), place, found)


def render_status(console: Console, place: Home, found: dict[str, Any]) -> None:
    """Print the status; addresses and paths are not wrapped, so that they can be copied."""
    header = f"Nodesmith runs on {place.folder} (pid {found['pid']}), API at {found['url']}"
    header += f", models at {found['gateway_url']}/v1" if found.get("gateway_url") else ""
    console.print(escape(header), soft_wrap=True)
    console.print(board.table(record.read_current(place.processes_file)))
    for line in (*board.summary_lines(found), f"Logs in {found['logs']}"):
        console.print(escape(line), soft_wrap=True)


def _stop(place: Home, pid: int) -> None:
    _terminate(pid)
    if not _wait_for_end(place, pid):
        raise CommandFailed(
            f"Nodesmith (pid {pid}) has not stopped within {_STOP_PATIENCE:.0f} s.",
            f"`kill -9 {pid}` ends it and all its children; accepted operations are not lost.",
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
def _convert_stack_errors() -> Iterator[None]:
    try:
        yield
    except StackError as error:
        raise CommandFailed(error.message, error.remedy, code=error.code) from error

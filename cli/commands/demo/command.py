"""`nodesmith demo`: kills processes during installs and checks that the operations survive."""

import asyncio
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from nodesmith.cli.commands.demo.screen import Screen
from nodesmith.cli.commands.demo.source import serve
from nodesmith.cli.commands.demo.system import running_system
from nodesmith.cli.commands.demo.tour import AGENTS, Tour
from nodesmith.cli.errors import INTERRUPTED, NOT_DONE, CommandFailed
from nodesmith.cli.output.render import duration, make_console
from nodesmith.domain.errors import NodesmithError

DOWNLOAD_S = 20.0
"""duration of one undisturbed download"""


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    *,
    megabytes: Annotated[int, typer.Option(min=1, max=2000, help="Size of the artifact.")] = 200,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the system running at the end, until Ctrl-C.")] = False,
) -> None:
    """Kill it and watch: a tour on a temporary system that ends by itself and prints what it proves.

    It needs no network, takes under two minutes and cleans up. The exit code is 0 if every promise was kept, 1 if one
    was not.
    """
    screen = Screen(make_console())
    try:
        asyncio.run(_run_until_signal(screen, megabytes, keep=keep))
    except asyncio.CancelledError:
        screen.conclude("Stopped before the end; everything was cleaned up.")
        raise typer.Exit(INTERRUPTED) from None
    if screen.failed:
        raise typer.Exit(NOT_DONE)


async def _run_until_signal(screen: Screen, megabytes: int, *, keep: bool) -> None:
    """Cancel the tour on Ctrl-C and SIGTERM, so that it stops everything in order."""
    tour = asyncio.create_task(_run_in_temporary_folder(screen, megabytes, keep=keep))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, tour.cancel)
    await tour


async def _run_in_temporary_folder(screen: Screen, megabytes: int, *, keep: bool) -> None:
    """Run the tour in a temporary folder, which is kept only after a failure."""
    folder = Path(tempfile.mkdtemp(prefix="nodesmith-demo-"))
    try:
        await _tour(screen, folder / "home", megabytes, keep=keep)
    except (NodesmithError, CommandFailed):
        screen.failed.append("the tour")
        raise
    finally:
        if screen.failed:
            screen.print_line(f"the folder with all logs is kept: {folder}")
        else:
            shutil.rmtree(folder)


async def _tour(screen: Screen, home: Path, megabytes: int, *, keep: bool) -> None:
    began = time.monotonic()
    screen.print_line("starting a temporary system: PostgreSQL, NATS, Temporal, api, worker, three agents")
    async with (
        serve(megabytes * 1_000_000 / DOWNLOAD_S) as source,
        running_system(home, len(AGENTS)) as system,
    ):
        screen.print_line(f"ready after {duration(time.monotonic() - began)}")
        await Tour(system, source, screen).run(megabytes)
        if keep:
            screen.print_line("the system runs until Ctrl-C")
            await asyncio.Event().wait()

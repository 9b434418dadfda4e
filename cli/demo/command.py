"""`nodesmith demo`: kill it and watch."""

import asyncio
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from cli.demo.screen import Screen
from cli.demo.source import serve
from cli.demo.system import running_system
from cli.demo.tour import AGENTS, Tour
from cli.failures import INTERRUPTED, NOT_DONE, CommandFailed
from cli.render import duration, make_console
from domain.errors import NodesmithError

DOWNLOAD_S = 20.0
"""how long one undisturbed download takes"""


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    *,
    megabytes: Annotated[int, typer.Option(min=1, max=2000, help="Size of the artifact.")] = 200,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the system running at the end, until Ctrl-C.")] = False,
) -> None:
    """Kill it and watch: a tour that starts a system of its own, ends by itself, and says what it proves.

    It needs no network, takes under two minutes and leaves nothing behind. The exit code is 0 when every promise was
    kept, 1 when one was not.
    """
    screen = Screen(make_console())
    try:
        asyncio.run(_stoppable(screen, megabytes, keep=keep))
    except asyncio.CancelledError:
        screen.last("Stopped before the end; nothing is left behind.")
        raise typer.Exit(INTERRUPTED) from None
    if screen.failed:
        raise typer.Exit(NOT_DONE)


async def _stoppable(screen: Screen, megabytes: int, *, keep: bool) -> None:
    """Ctrl-C and SIGTERM end the tour the way its end does: everything is stopped, in order."""
    tour = asyncio.create_task(_show(screen, megabytes, keep=keep))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, tour.cancel)
    await tour


async def _show(screen: Screen, megabytes: int, *, keep: bool) -> None:
    """Run the tour in a folder of its own, which stays only if there is something to look into."""
    folder = Path(tempfile.mkdtemp(prefix="nodesmith-demo-"))
    try:
        await _tour(screen, folder / "home", megabytes, keep=keep)
    except (NodesmithError, CommandFailed):
        screen.failed.append("the tour")
        raise
    finally:
        if screen.failed:
            screen.say(f"kept for a look, with all logs: {folder}")
        else:
            shutil.rmtree(folder)


async def _tour(screen: Screen, home: Path, megabytes: int, *, keep: bool) -> None:
    began = time.monotonic()
    screen.say("starting a system of its own: PostgreSQL, NATS, Temporal, api, worker, three agents")
    async with (
        serve(megabytes * 1_000_000 / DOWNLOAD_S) as source,
        running_system(home, len(AGENTS)) as system,
    ):
        screen.say(f"ready after {duration(time.monotonic() - began)}")
        await Tour(system, source, screen).run(megabytes)
        if keep:
            screen.say("the system stays until Ctrl-C")
            await asyncio.Event().wait()

"""Runs one `up`, attached to a terminal or a pipe, or detached in the background."""

import asyncio
import errno
import json
import os
import shlex
import shutil
import signal
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape

from nodesmith.cli.errors import INTERRUPTED, CommandFailed
from nodesmith.cli.output.board import ChangeLines, show_board
from nodesmith.cli.output.render import PIPE_WIDTH, SafeConsole, print_json_line
from nodesmith.stack.api import LocalApi
from nodesmith.stack.home import Home, find_home
from nodesmith.stack.processes.record import ProcessState
from nodesmith.stack.up import Options, Ready, Stack

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class UpView(Protocol):
    """The output of an `up`."""

    def note(self, text: str) -> None: ...
    def changed(self, states: list[ProcessState]) -> None: ...
    def ready(self, ready: dict[str, Any], *, detached: bool) -> None: ...
    async def watch(self, stack: Stack, stop: asyncio.Event) -> None: ...


class JsonView:
    """For programs: prints one JSON object when ready, and nothing else."""

    def note(self, text: str) -> None:
        """Print nothing."""

    def changed(self, states: list[ProcessState]) -> None:
        """Print nothing."""

    def ready(self, ready: dict[str, Any], *, detached: bool) -> None:
        del detached
        print_json_line(ready)

    async def watch(self, stack: Stack, stop: asyncio.Event) -> None:
        del stack
        await stop.wait()


class LastingConsole(SafeConsole):
    """A console that lets the process continue after its reader has closed the pipe."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class TerminalView:
    """For users: a few lines of progress, the summary, then the board (or lines on changes in a pipe)."""

    def __init__(self, console: Console | None = None) -> None:
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        self._console = console or LastingConsole(width=width)
        self.changed = ChangeLines(self._line)

    def note(self, text: str) -> None:
        self._console.print("[dim]nodesmith:[/]", escape(text), soft_wrap=True)

    def _line(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)

    def ready(self, ready: dict[str, Any], *, detached: bool) -> None:
        agents = ", ".join(f"{agent['name']} ({agent['status']})" for agent in ready["agents"])
        stop = f"{_command(ready['home'], 'down')}" if detached else "Ctrl-C"
        lines = [
            ("API docs", ready["docs_url"]),
            ("Temporal Web UI", ready["temporal_ui_url"]),
            ("Models (OpenAI)", f"{ready['gateway_url']}/v1"),
            ("Other machines", _invitation(ready)),
            ("Agents", agents or "none"),
            ("Logs", ready["logs"]),
            ("Stop", stop),
            ("Try", _command(ready["home"], "backends install echo --on agent-1 --watch")),
        ]
        self._line(f"\nReady in {ready['seconds']:.1f} s\n")
        self._line(f"Console (this link signs you in once):\n{ready['sign_in_url']}\n")
        for name, value in lines:
            if value:
                self._console.print(f"[bold]{name:<18}[/]  {escape(value)}", soft_wrap=True)
        self._console.print()

    async def watch(self, stack: Stack, stop: asyncio.Event) -> None:
        connection = stack.home.connection()
        if self._console.is_terminal and connection is not None:
            await show_board(self._console, lambda: stack.states, LocalApi(connection), stop)
            return
        self.changed.enabled = True
        await stop.wait()
        self.changed.enabled = False


async def run_attached(options: Options, view: UpView) -> None:
    """Start the stack, show it until a signal arrives, and stop it in reverse order."""
    stop = asyncio.Event()
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stack = Stack(options, note=view.note, changed=view.changed)
    try:
        ready = await _start_unless_stopped(stack, stop)
        if ready is not None:
            view.ready(asdict(ready), detached=False)
            await view.watch(stack, stop)
            view.note("stopping in reverse order of the start")
    finally:
        await stack.stop()


async def _start_unless_stopped(stack: Stack, stop: asyncio.Event) -> Ready | None:
    starting = asyncio.create_task(stack.start())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait([starting])
    return None


def run_detached(options: Options, view: UpView) -> None:
    """Run `up --json` in a background process, and wait for its JSON object."""
    home = Home(options.home)
    home.create()
    view.note(f"starting in the background, home {home.folder}")
    with home.log("up").open("a+") as log:
        before = log.tell()
        reading, writing = os.pipe()
        # fork, because loading a second interpreter would take half a second
        pid = os.fork()
        if pid == 0:
            _daemonize(writing, log.fileno())
            asyncio.run(run_attached(options, JsonView()))
            return
        os.close(writing)
        try:
            with os.fdopen(reading, "rb") as answers:
                answer = answers.readline()
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            raise typer.Exit(INTERRUPTED) from None
        if not answer:
            _, status = os.waitpid(pid, 0)
            log.seek(before)
            if home.is_full():  # its error message did not fit into the log
                raise home.unusable(OSError(errno.ENOSPC, "no space left on the device"))
            raise _failure(log.read(), os.waitstatus_to_exitcode(status))
    view.ready(json.loads(answer), detached=True)


def _daemonize(answers: int, log: int) -> None:
    """Detach from the terminal: start a session, redirect the standard streams, and print errors as JSON."""
    os.setsid()
    for ours, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (answers, 1), (log, 2)):
        os.dup2(ours, standard)
    os.close(answers)
    sys.argv.append("--json")


def _invitation(ready: dict[str, Any]) -> str:
    """Describe how another machine joins; empty without --listen."""
    url = ready["public_url"]
    return f"{url}   (to add a node: {_command(ready['home'], 'nodes invite')})" if url else ""


def _failure(output: str, code: int) -> CommandFailed:
    """Convert the output of the background process: a JSON error, unless it crashed or was stopped."""
    if code <= 0:
        how = f"killed by {signal.Signals(-code).name}" if code else "stopped"
        return CommandFailed(f"Nodesmith was {how} before it was ready.", "Start it again.", code="stack")
    last = output.strip().rpartition("\n")[2]
    try:
        error = json.loads(last)["error"]
    except (ValueError, KeyError, TypeError):
        return CommandFailed(f"Nodesmith did not start: {last}", "The whole message is in logs/up.log of the home.")
    return CommandFailed(error["message"], error["remedy"], code=error["code"])


def _command(home: str, arguments: str) -> str:
    """Return a command line that works from the current folder."""
    ours = Path(sysconfig.get_path("scripts")) / "nodesmith"
    beside = os.path.relpath(ours)
    program = (
        "nodesmith" if shutil.which("nodesmith") == str(ours) else str(ours) if beside.startswith("..") else beside
    )
    elsewhere = "" if find_home() == Path(home) else f" --home {shlex.quote(home)}"
    return f"{program} {arguments}{elsewhere}"

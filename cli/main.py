"""The `nodesmith` command: a client of the HTTP API that can also start Nodesmith's processes."""

import importlib
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from cli.failures import CommandFailed
from domain.errors import NodesmithError

COMMANDS = {
    "up": ("cli.up", "Start the whole system on this machine."),
    "down": ("cli.up", "Stop what `up` started."),
    "status": ("cli.up", "Say what runs, and where."),
    "nodes": ("cli.nodes", "List nodes, look at one; approve, drain, resume, remove."),
    "backends": ("cli.backends", "List backends; install, upgrade, roll back, remove; logs, stop."),
    "models": ("cli.models", "List what runs on the nodes; stop, unload, delete."),
    "galleries": ("cli.galleries", "List, add, remove and refresh galleries of backends."),
    "backend": ("cli.packing", "Make a backend of your own: pack it, upload it."),
    "sources": ("cli.sources", "Say how hosts are reached: password, certificates, proxy."),
    "ops": ("cli.operations", "List, show, watch, cancel, retry, dismiss operations; history."),
    "batches": ("cli.batches", "List, show and watch batches; pause, resume, cancel, retry."),
    "hold": ("cli.hold", "Hold back what is not on a node yet."),
    "release": ("cli.hold", "Let go what was held back."),
    "tokens": ("cli.tokens", "Make, list and revoke tokens with a role."),
    "audit": ("cli.audit", "Who changed what, and why."),
    "demo": ("cli.demo.command", "Kill it and watch: a tour of two minutes that ends by itself."),
    "simulate": ("cli.simulate", "Play many nodes in one process, on the real wire."),
    "api": ("cli.processes", "Run the HTTP API process."),
    "worker": ("cli.processes", "Run a Temporal worker process."),
    "agent": ("cli.processes", "Run the agent of this node."),
    "secrets": ("cli.secrets", "Make the secret files that docker-compose.yml mounts."),
}
"""name -> (module with `register(app)`, short help)"""


class OnDemand(TyperGroup):
    """Imports the module of a command when it is called, not to list it: `nodesmith --help` stays quick."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, (_load(name) if name else listed), rest


def _load(name: str) -> Any:
    module, _ = COMMANDS[name]
    loaded = typer.Typer(rich_markup_mode=None)
    importlib.import_module(module).register(loaded)
    return typer.main.get_group(loaded).commands[name]


def make_app() -> typer.Typer:
    # Plain help: it is quicker by a third than rich's, and reads the same in a pipe.
    app = typer.Typer(
        cls=OnDemand,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nodesmith)
    for name, (_, summary) in COMMANDS.items():
        app.command(name, help=summary)(_unloaded)
    return app


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        metadata = importlib.import_module("importlib.metadata")  # half of the time that this module takes to load
        typer.echo(f"nodesmith {metadata.version('nodesmith')}")
        raise typer.Exit


def _nodesmith(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable install, upgrade and removal of inference backends on a fleet of nodes."""


def _unloaded() -> None:
    """Stand in the list of commands for one that is not imported yet."""


def main() -> None:
    try:
        make_app()()
    except CommandFailed as failure:
        _give_up(failure)
    except NodesmithError as error:
        _give_up(CommandFailed(error.message, getattr(error, "remedy", ""), code=error.code))
    except OSError as error:
        if error.filename is None:  # not about a file that the user has named, or can do anything about
            raise
        sentence = f"{error.filename} cannot be used: {error.strerror}."
        _give_up(CommandFailed(sentence, "Is the path right, and does it belong to you?", code="no_access"))


def _give_up(failure: CommandFailed) -> NoReturn:
    sys.stderr.write((failure.as_json() if "--json" in sys.argv else failure.as_text()) + "\n")
    sys.exit(failure.exit_code)

"""The `nodesmith` command: a client of the HTTP API that can also start Nodesmith's processes."""

import importlib
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from nodesmith.cli.errors import CommandFailed, failure_of
from nodesmith.cli.output.terminal import print_line
from nodesmith.domain.errors import NodesmithError

COMMANDS = {
    "up": ("nodesmith.cli.commands.up", "Start the whole system on this machine."),
    "down": ("nodesmith.cli.commands.up", "Stop what `up` started."),
    "status": ("nodesmith.cli.commands.up", "Show what runs, and where."),
    "nodes": ("nodesmith.cli.commands.nodes", "List and show nodes; approve, drain, resume, remove."),
    "backends": ("nodesmith.cli.commands.backends", "List backends; install, upgrade, roll back, remove; logs, stop."),
    "models": ("nodesmith.cli.commands.models", "List running models; stop, unload, delete."),
    "galleries": ("nodesmith.cli.commands.galleries", "List, add, remove, refresh, sign and trust galleries."),
    "backend": ("nodesmith.cli.commands.packing", "Pack and upload your own backend."),
    "sources": ("nodesmith.cli.commands.sources", "Set password, certificates and proxy of download hosts."),
    "ops": ("nodesmith.cli.commands.operations", "List, show, watch, cancel, retry, dismiss operations; history."),
    "batches": ("nodesmith.cli.commands.batches", "List, show and watch batches; pause, resume, cancel, retry."),
    "hold": ("nodesmith.cli.commands.hold", "Hold all operations that have not reached a node."),
    "release": ("nodesmith.cli.commands.hold", "Release the hold."),
    "tokens": ("nodesmith.cli.commands.tokens", "Create, list and revoke tokens with a role."),
    "sessions": ("nodesmith.cli.commands.sessions", "Create sign-in links; list and end browser sessions."),
    "keys": ("nodesmith.cli.commands.keys", "List and replace the keys that sign orders to nodes."),
    "audit": ("nodesmith.cli.commands.audit", "Show who changed what, and why."),
    "demo": ("nodesmith.cli.commands.demo.command", "Kill it and watch: a tour of two minutes that ends by itself."),
    "simulate": ("nodesmith.cli.commands.simulate", "Simulate many nodes in one process."),
    "api": ("nodesmith.cli.commands.processes", "Run the HTTP API process."),
    "worker": ("nodesmith.cli.commands.processes", "Run a Temporal worker process."),
    "gateway": ("nodesmith.cli.commands.processes", "Run the gateway for calls of models."),
    "agent": ("nodesmith.cli.commands.processes", "Run the agent of this node."),
    "secrets": ("nodesmith.cli.commands.secrets", "Create the secret files that docker-compose.yml mounts."),
}
"""name -> (module with `register(app)`, short help)"""


class LazyCommands(TyperGroup):
    """Imports the module of a command only when it is called, so that `nodesmith --help` stays fast."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, (_load(name) if name else listed), rest


def _load(name: str) -> Any:
    module, _ = COMMANDS[name]
    loaded = typer.Typer(rich_markup_mode=None)
    importlib.import_module(module).register(loaded)
    return typer.main.get_group(loaded).commands[name]


def make_app() -> typer.Typer:
    # Plain help is a third faster than rich's, and identical in a pipe.
    app = typer.Typer(
        cls=LazyCommands,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nodesmith)
    for name, (_, summary) in COMMANDS.items():
        app.command(name, help=summary)(_placeholder)
    return app


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        metadata = importlib.import_module(
            "importlib.metadata"
        )  # imported here: it would double this module's load time
        print_line(f"nodesmith {metadata.version('nodesmith')}")
        raise typer.Exit


def _nodesmith(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable install, upgrade and removal of inference backends on a fleet of nodes."""


def _placeholder() -> None:
    """Placeholder for a command whose module is not imported yet."""


def main() -> None:
    try:
        make_app()()
    except CommandFailed as failure:
        _exit_with(failure)
    except NodesmithError as error:
        _exit_with(failure_of(error))
    except OSError as error:
        if error.filename is None:  # not about a file, so the user cannot fix it
            raise
        sentence = f"{error.filename} cannot be used: {error.strerror}."
        _exit_with(CommandFailed(sentence, "Check the path and its permissions.", code="no_access"))


def _exit_with(failure: CommandFailed) -> NoReturn:
    print_line(failure.as_json() if "--json" in sys.argv else failure.as_text(), err=True)
    sys.exit(failure.exit_code)

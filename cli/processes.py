"""`nodesmith api`, `worker` and `agent`: one process each, configured by the environment."""

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from agent.settings import explained
from cli.failures import CommandFailed
from runtime import begin


def register(app: typer.Typer) -> None:
    app.command("api")(api)
    app.command("worker")(worker)
    agents = typer.Typer(rich_markup_mode=None, invoke_without_command=True, epilog=_agent_settings())
    agents.callback()(agent)
    agents.command("join")(join)
    app.add_typer(agents, name="agent", help="Run the agent of this node, or let this machine join.")


def _agent_settings() -> str:
    """Each one a paragraph that is not filled: \\b is how click is told so."""
    return "\n\n".join(f"\b\n{setting}" for setting in explained())


def api() -> None:
    """Run the HTTP API, until SIGTERM. Any number of them serve the same fleet.

    Settings are NODESMITH_* variables: docs/operations.md lists them.
    """
    run("api.main")


def worker() -> None:
    """Run a Temporal worker, until SIGTERM. Any number of them share the work.

    Settings are NODESMITH_* variables: docs/operations.md lists them.
    """
    run("workers.main")


def agent(context: typer.Context) -> None:
    """Run the agent of this node, until SIGTERM. One for each node.

    `nodesmith agent join` lets a machine join, with the line that `nodesmith nodes invite` prints. Without it,
    settings are NODESMITH_AGENT_* variables; NODESMITH_AGENT_URL and NODESMITH_AGENT_TOKEN_FILE are needed to register.
    """
    if context.invoked_subcommand is None:
        run("agent.main")


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the API.", show_default=False)],
    invite: Annotated[str, typer.Argument(metavar="TOKEN", help="The invite.", show_default=False)],
    *,
    ca_sha256: Annotated[
        str, typer.Option("--ca-sha256", metavar="HEX", help="Fingerprint of the CA to trust.", show_default=False)
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Name of the node. Default: the host name.")] = "",
    home: Annotated[
        Path, typer.Option("--home", envvar="NODESMITH_AGENT_HOME", help="The node's folder; all it writes is there.")
    ] = Path("agent-home"),
    no_run: Annotated[bool, typer.Option("--no-run", help="Register only; `nodesmith agent` runs it later.")] = False,
) -> None:
    """Let this machine join, then run its agent until SIGTERM.

    The line is printed by `nodesmith nodes invite`. It may be repeated: a machine that has joined goes on as the same
    node, also when the invite is over.
    """
    from agent.join import join as join_once  # noqa: PLC0415 - only here, `nodesmith api` does without

    identity = asyncio.run(join_once(url, invite, home=home, name=name, ca_sha256=ca_sha256))
    state = "is admitted" if identity.nats_jwt else "waits for approval"
    typer.echo(f"Joined {url} as node {identity.node_id}: it {state}. Everything is in {home.absolute()}.")
    if no_run:
        typer.echo(f"  start it with:  NODESMITH_AGENT_HOME={home.absolute()} nodesmith agent")
        return
    _become_agent(home)


def _become_agent(home: Path) -> NoReturn:
    """As a new program: other users of this machine see command lines, and ours holds the invite."""
    sys.stdout.flush()
    environment = {**os.environ, "NODESMITH_AGENT_HOME": str(home.absolute())}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "agent.main"], environment)  # noqa: S606 - ourselves


def run(module: str) -> None:
    """Import the process and become it; the control plane's libraries are an extra of the installation."""
    try:
        process = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"This installation lacks {error.name}, which this process needs.",
            "Install Nodesmith with the extra `control`; a node needs only `nodesmith agent`.",
            code="not_installed",
        ) from error
    begin.run(process.main)

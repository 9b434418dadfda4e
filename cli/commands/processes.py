"""`nodesmith api`, `worker`, `gateway` and `agent`: each runs one process, configured by the environment."""

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from nodesmith.agent.settings import explained
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.output.terminal import print_line
from nodesmith.runtime import process_start


def register(app: typer.Typer) -> None:
    app.command("api")(api)
    app.command("worker")(worker)
    app.command("gateway")(gateway)
    agents = typer.Typer(rich_markup_mode=None, invoke_without_command=True, epilog=_agent_settings())
    agents.callback()(agent)
    agents.command("join")(join)
    app.add_typer(agents, name="agent", help="Run the agent of this node, or let this machine join.")


def _agent_settings() -> str:
    """Return one paragraph per setting; \\b keeps click from rewrapping it."""
    return "\n\n".join(f"\b\n{setting}" for setting in explained())


def api() -> None:
    """Run the HTTP API until SIGTERM. Several replicas can serve the same fleet.

    Settings are NODESMITH_* variables: docs/reference/settings.md lists them.
    """
    run("nodesmith.api.main")


def worker() -> None:
    """Run a Temporal worker until SIGTERM. Several workers share the load.

    Settings are NODESMITH_* variables: docs/reference/settings.md lists them.
    """
    run("nodesmith.workers.main")


def gateway() -> None:
    """Run the gateway, which receives calls of models, until SIGTERM. Several gateways can serve side by side.

    Settings are NODESMITH_* variables: docs/reference/settings.md lists them.
    """
    run("nodesmith.gateway.main")


def agent(context: typer.Context) -> None:
    """Run the agent of this node until SIGTERM. Each node has one agent.

    `nodesmith agent join` lets a machine join, with the line that `nodesmith nodes invite` prints. Without it,
    settings are NODESMITH_AGENT_* variables; NODESMITH_AGENT_URL and NODESMITH_AGENT_TOKEN_FILE are needed to register.
    """
    if context.invoked_subcommand is None:
        run("nodesmith.agent.main")


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the API.", show_default=False)],
    invite: Annotated[str, typer.Argument(metavar="TOKEN", help="The invite.", show_default=False)],
    *,
    ca_sha256: Annotated[
        str, typer.Option("--ca-sha256", metavar="HEX", help="Fingerprint of the CA to trust.", show_default=False)
    ] = "",
    trust: Annotated[
        str,
        typer.Option(
            "--trust",
            metavar="sha256:HEX",
            help="Fingerprint of the root key that signs orders.",
            show_default=False,
        ),
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Name of the node. Default: the host name.")] = "",
    home: Annotated[
        Path, typer.Option("--home", envvar="NODESMITH_AGENT_HOME", help="Folder for all files of the node.")
    ] = Path("agent-home"),
    no_run: Annotated[bool, typer.Option("--no-run", help="Register only; `nodesmith agent` runs it later.")] = False,
) -> None:
    """Let this machine join, then run its agent until SIGTERM.

    `nodesmith nodes invite` prints this command. It can be repeated: a machine that has joined stays the same node,
    even after the invite has expired.
    """
    from nodesmith.agent.link.join import join as join_once  # noqa: PLC0415 - not needed by `nodesmith api`

    identity = asyncio.run(join_once(url, invite, home=home, name=name, ca_sha256=ca_sha256, trust=trust))
    state = "is approved" if identity.nats_jwt else "waits for approval"
    print_line(f"Joined {url} as node {identity.node_id}: it {state}. Its files are in {home.absolute()}.")
    if no_run:
        print_line(f"  start it with:  NODESMITH_AGENT_HOME={home.absolute()} nodesmith agent")
        return
    _exec_agent(home)


def _exec_agent(home: Path) -> NoReturn:
    """Replace this process: other users can see its command line, which contains the invite."""
    sys.stdout.flush()
    environment = {**os.environ, "NODESMITH_AGENT_HOME": str(home.absolute())}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "nodesmith.agent.main"], environment)  # noqa: S606 - our own program


def run(module: str) -> None:
    """Import a process's module and run it; the control plane's libraries are an optional extra."""
    try:
        process = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"This installation lacks {error.name}, which this process needs.",
            "Install Nodesmith with the extra `control`; a node needs only `nodesmith agent`.",
            code="not_installed",
        ) from error
    process_start.run(process.main)

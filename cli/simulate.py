"""`nodesmith simulate`: many nodes in one process, for rehearsals and measurements."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from agent.simulator import SimulationOptions, run_simulation
from cli.connection import find, find_ca
from cli.failures import CommandFailed
from cli.options import Home, Token, Url
from runtime import logs, process
from stack.home import Home as HomeFolder
from stack.home import find_home
from stack.secrets import REGISTRATION_TOKEN


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    *,
    nodes: Annotated[int, typer.Option(min=1, max=20_000, help="How many nodes to play.")] = 10,
    install_seconds: Annotated[float, typer.Option(min=0, help="How long one install takes.")] = 5.0,
    size: Annotated[int, typer.Option(min=0, help="How many bytes an install pretends to fetch.")] = 100_000_000,
    fail_rate: Annotated[float, typer.Option(min=0, max=1, help="Which part of the installs fails.")] = 0.0,
    latency: Annotated[float, typer.Option(min=0, help="Milliseconds before each answer.")] = 0.0,
    protocol: Annotated[int, typer.Option(min=1, max=2, help="1: LocalAI workers, 2: our own agents.")] = 2,
    name_prefix: Annotated[str, typer.Option(help="Nodes are called PREFIX-1, PREFIX-2 ...")] = "sim",
    registration_token: Annotated[
        str | None,
        typer.Option(
            envvar="NODESMITH_REGISTRATION_TOKEN", help="Default: that of the home folder.", show_default=False
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
) -> None:
    """Play many nodes on the real wire, until Ctrl-C; they register, are approved, and install without a disk."""
    address, admin_token = find(url, token, home)
    options = SimulationOptions(
        url=address,
        registration_token=registration_token or _registration_token(home),
        admin_token=admin_token,
        nodes=nodes,
        install_seconds=install_seconds,
        size=size,
        fail_rate=fail_rate,
        latency=latency,
        protocol=protocol,
        name_prefix=name_prefix,
        ca_file=find_ca(home),
    )
    logs.configure("WARNING")
    process.run(lambda stop: _play(options, stop))


async def _play(options: SimulationOptions, stop: asyncio.Event) -> int:
    await run_simulation(options, stop)
    return 0


def _registration_token(home: Path | None) -> str:
    place = HomeFolder(find_home(home)).secret(REGISTRATION_TOKEN)
    try:
        return place.read_text().strip()
    except OSError as error:
        raise CommandFailed(
            f"The registration token in {place} cannot be read ({error.strerror}).",
            "Give --registration-token, or set NODESMITH_REGISTRATION_TOKEN.",
            code="no_token",
        ) from error

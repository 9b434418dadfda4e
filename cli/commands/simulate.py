"""`nodesmith simulate`: simulates many nodes in one process, for rehearsals and measurements."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from nodesmith.agent.simulator.simulation import SimulationOptions, run_simulation
from nodesmith.cli.connection import find, find_ca
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.options import Home, Token, Url
from nodesmith.runtime import logs, process_exit
from nodesmith.stack.home import Home as HomeFolder
from nodesmith.stack.home import find_home
from nodesmith.stack.secrets import REGISTRATION_TOKEN


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    *,
    nodes: Annotated[int, typer.Option(min=1, max=20_000, help="Number of simulated nodes.")] = 10,
    install_seconds: Annotated[float, typer.Option(min=0, help="Duration of one install in seconds.")] = 5.0,
    load_seconds: Annotated[float, typer.Option(min=0, help="Duration of one load of a model in seconds.")] = 2.0,
    size: Annotated[int, typer.Option(min=0, help="Bytes that an install reports as fetched.")] = 100_000_000,
    fail_rate: Annotated[float, typer.Option(min=0, max=1, help="Fraction of installs that fail.")] = 0.0,
    latency: Annotated[float, typer.Option(min=0, help="Delay of each answer in milliseconds.")] = 0.0,
    protocol: Annotated[
        int, typer.Option(min=1, max=2, help="1: LocalAI workers (if enabled), 2: Nodesmith agents.")
    ] = 2,
    name_prefix: Annotated[str, typer.Option(help="Nodes are named PREFIX-1, PREFIX-2 ...")] = "sim",
    registration_token: Annotated[
        str | None,
        typer.Option(
            envvar="NODESMITH_REGISTRATION_TOKEN", help="Default: the token in the home folder.", show_default=False
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
) -> None:
    """Simulate many nodes until Ctrl-C: they use the real protocol, and install without writing to a disk."""
    address, admin_token = find(url, token, home)
    options = SimulationOptions(
        url=address,
        registration_token=registration_token or _registration_token(home),
        admin_token=admin_token,
        nodes=nodes,
        install_seconds=install_seconds,
        load_seconds=load_seconds,
        size=size,
        fail_rate=fail_rate,
        latency=latency,
        protocol=protocol,
        name_prefix=name_prefix,
        ca_file=find_ca(home),
    )
    logs.configure("WARNING")
    process_exit.run(lambda stop: _simulate(options, stop))


async def _simulate(options: SimulationOptions, stop: asyncio.Event) -> int:
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

"""`nodesmith secrets`: what docker-compose.yml mounts."""

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Json
from cli.render import print_json
from stack.compose import make_secrets


def register(app: typer.Typer) -> None:
    app.command("secrets")(secrets)


def secrets(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to make the folder `secrets`.")] = Path("deploy"),
    *,
    as_json: Json = False,
) -> None:
    """Make the secret files that docker-compose.yml mounts: tokens, passwords, NATS keys and its configuration.

    What is there already is kept, so it is safe to run again. The folder is 0700. Keep a copy of it somewhere safe:
    whoever has it owns the fleet, and without it every node has to register anew.
    """
    made = make_secrets(folder)
    names = sorted(path.name for path in made.iterdir())
    if as_json:
        return print_json({"folder": str(made), "files": names})
    return typer.echo(f"{made}: {', '.join(names)}\n  next:  docker compose up --build --detach")

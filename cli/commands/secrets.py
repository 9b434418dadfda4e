"""`nodesmith secrets`: creates the secret files that docker-compose.yml mounts."""

from pathlib import Path
from typing import Annotated

import typer

from nodesmith.cli.options import Json
from nodesmith.cli.output.render import print_json
from nodesmith.cli.output.terminal import print_line
from nodesmith.stack.compose import make_secrets


def register(app: typer.Typer) -> None:
    app.command("secrets")(secrets)


def secrets(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to create the folder `secrets`.")] = Path(
        "deploy"
    ),
    *,
    as_json: Json = False,
) -> None:
    """Create the secret files that docker-compose.yml mounts: tokens, passwords, NATS keys and its configuration.

    Existing files are kept, so it is safe to run again. The folder has mode 0700. Keep a backup in a safe place: these
    files give full control of the fleet, and without them every node must register again.
    """
    made = make_secrets(folder)
    names = sorted(path.name for path in made.iterdir())
    if as_json:
        return print_json({"folder": str(made), "files": names})
    return print_line(f"{made}: {', '.join(names)}\n  next:  docker compose up --build --detach")

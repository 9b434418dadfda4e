"""Finds the API's address and token in options, environment, or the home folder of `nodesmith up`."""

import os
from pathlib import Path

from nodesmith.cli.errors import UNREACHABLE, CommandFailed
from nodesmith.client import Client
from nodesmith.stack.home import Connection, Home, find_home


def connect(url: str | None, token: str | None, home: Path | None) -> Client:
    """Create a client; this sends no request."""
    return Client(*find(url, token, home), ca_file=find_ca(home))


def find_ca(home: Path | None) -> Path | None:
    """Return the CA to trust in addition to the system's: $NODESMITH_CA_FILE, else the home's."""
    if named := os.environ.get("NODESMITH_CA_FILE"):
        return Path(named)
    found = Home(find_home(home)).connection()
    return found.ca_file if found else None


def find(url: str | None, token: str | None, home: Path | None) -> tuple[str, str]:
    """Return address and token."""
    if url and token:
        return url, token
    found = Home(find_home(home)).connection()
    if found is None:
        raise CommandFailed(
            f"{find_home(home)} is not the home of a Nodesmith, and no address and token were given.",
            "Start one with `nodesmith up` (or `make run`), or set NODESMITH_URL and NODESMITH_TOKEN.",
            code="no_home",
            exit_code=UNREACHABLE,
        )
    # Send the home's token only to the home's address.
    if url and url.rstrip("/") != found.url.rstrip("/"):
        raise CommandFailed(f"No token was given for {url}.", "Set NODESMITH_TOKEN, or give --token.", code="no_token")
    return url or found.url, token or _token_of(found)


def _token_of(connection: Connection) -> str:
    try:
        return connection.token()
    except OSError as error:
        raise CommandFailed(
            f"The token in {connection.token_file} cannot be read ({error.strerror}).",
            "Run this as the user that runs `nodesmith up`, or set NODESMITH_TOKEN.",
            code="no_token",
        ) from error

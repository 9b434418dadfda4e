"""Where the API is and with which token: options, environment, or what `nodesmith up` left in the home folder."""

import os
from pathlib import Path

from cli.client import ApiClient
from cli.failures import UNREACHABLE, CommandFailed
from stack.home import Connection, Home, find_home


def connect(url: str | None, token: str | None, home: Path | None) -> ApiClient:
    """Open a client; nothing is sent yet."""
    return ApiClient(*find(url, token, home), ca_file=find_ca(home))


def find_ca(home: Path | None) -> Path | None:
    """The CA to trust beside the system's: $NODESMITH_CA_FILE, else that of the home."""
    if named := os.environ.get("NODESMITH_CA_FILE"):
        return Path(named)
    found = Home(find_home(home)).connection()
    return found.ca_file if found else None


def find(url: str | None, token: str | None, home: Path | None) -> tuple[str, str]:
    """Address and admin token."""
    if url and token:
        return url, token
    found = Home(find_home(home)).connection()
    if found is None:
        raise CommandFailed(
            f"There is no Nodesmith in {find_home(home)}, and no address and token were given.",
            "Start one with `nodesmith up` (or `make run`), or set NODESMITH_URL and NODESMITH_TOKEN.",
            code="no_home",
            exit_code=UNREACHABLE,
        )
    # A token goes only to the address it was made for.
    if url and url.rstrip("/") != found.url.rstrip("/"):
        raise CommandFailed(f"No token was given for {url}.", "Set NODESMITH_TOKEN, or give --token.", code="no_token")
    return url or found.url, token or _token_of(found)


def _token_of(connection: Connection) -> str:
    try:
        return connection.token()
    except OSError as error:
        raise CommandFailed(
            f"The token in {connection.token_file} cannot be read ({error.strerror}).",
            "Become the user that runs `nodesmith up`, or set NODESMITH_TOKEN.",
            code="no_token",
        ) from error

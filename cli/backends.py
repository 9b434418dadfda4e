"""`nodesmith backends`: what there is, and putting it on nodes."""

import typer
from rich.markup import escape

from cli import backend_changes
from cli.client import read
from cli.connection import connect
from cli.options import Home, Json, Token, Url
from cli.render import Column, make_console, print_json, show, size, table
from contracts.http import BackendEntry

COLUMNS: list[Column[BackendEntry]] = [
    Column("NAME", lambda entry: escape(entry.name)),
    Column("VERSION", lambda entry: escape(entry.version)),
    Column("SIZE", lambda entry: size(entry.size), right=True),
    Column("DESCRIPTION", lambda entry: escape(entry.description), may_wrap=True),
    Column("GALLERY", lambda entry: escape(entry.gallery), from_width=100),
    Column("SHA256", lambda entry: entry.sha256[:16], from_width=120),
]


def register(app: typer.Typer) -> None:
    backends = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    backends.command("ls")(list_backends)
    backend_changes.register(backends)
    app.add_typer(backends, name="backends", help="List the backends there are; install, upgrade, roll back, remove.")


def list_backends(*, url: Url = None, token: Token = None, home: Home = None, as_json: Json = False) -> None:
    """List the backends of all galleries, newest version first."""
    with connect(url, token, home) as api:
        entries = [read(BackendEntry, entry) for entry in api.get("/api/backends")["backends"]]
    if as_json:
        return print_json(entries)
    console = make_console()
    return show(console, table(entries, COLUMNS, console.width) if entries else "The galleries are empty.")

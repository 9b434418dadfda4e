"""`nodesmith sources`: how hosts are reached that want a password, a certificate or a proxy."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cli.client import read, segment
from cli.failures import CommandFailed
from cli.grouped import Link, grouped
from cli.options import Reason
from cli.render import Column, ago, print_json, show_list
from contracts.sources import SourceRequest, SourceView

Host = Annotated[str, typer.Argument(metavar="HOST", help="Name, or name:port.", show_default=False)]

COLUMNS: list[Column[SourceView]] = [
    Column("HOST", lambda view: escape(view.host)),
    Column("USERNAME", lambda view: escape(view.username)),
    Column("PASSWORD", lambda view: "set" if view.has_password else ""),
    Column("CA", lambda view: "set" if view.has_ca else ""),
    Column("PROXY", lambda view: "set" if view.has_proxy else ""),
    Column("SET", lambda view: ago(view.updated_at)),
    Column("BY", lambda view: escape(view.updated_by)),
]


def register(app: typer.Typer) -> None:
    sources = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    sources.command("ls")(grouped(list_sources))
    sources.command("add")(grouped(add))
    sources.command("rm")(grouped(remove))
    app.add_typer(sources, name="sources", help="Say how hosts are reached: password, certificates, proxy.")


def list_sources(*, link: Link) -> None:
    """List the hosts for which something is set; never the passwords."""
    with link.api() as api:
        views = [read(SourceView, entry) for entry in api.get("/api/sources")]
    show_list(views, COLUMNS, as_json=link.as_json, nothing="Nothing is set for any host.")


def add(
    host: Host,
    *,
    username: Annotated[str, typer.Option(help="Who we are there.")] = "",
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates in PEM to trust beside the system's.")
    ] = None,
    proxy: Annotated[str, typer.Option(metavar="URL", help="Reach the host through this proxy.")] = "",
    reason: Reason = None,
    link: Link,
) -> None:
    """Say how a host is reached, by nodes and for galleries; what was set before is replaced.

    It is kept sealed. A node asks for it when it downloads from that host, and keeps it nowhere.
    """
    body = SourceRequest.model_construct(
        username=username, password=_password() if password_stdin else "", ca=_certificates(ca), proxy=proxy
    )
    with link.api() as api:
        view = read(SourceView, api.put(f"/api/sources/{segment(host)}", body, reason=reason))
    if link.as_json:
        return print_json(view)
    return typer.echo(f"Set for {view.host}.")


def remove(host: Host, *, reason: Reason = None, link: Link) -> None:
    """Forget what was set for a host."""
    with link.api() as api:
        answer = api.delete(f"/api/sources/{segment(host)}", reason=reason)
    print_json(answer) if link.as_json else typer.echo(f"Nothing is set for {host} any more.")


def _password() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandFailed("No password came from standard input.", "Pipe one in.", code="no_password")
    return password


def _certificates(path: Path | None) -> str:
    try:
        return path.read_text() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path} cannot be read ({error}).", "Name a file in PEM.", code="no_certificates"
        ) from error

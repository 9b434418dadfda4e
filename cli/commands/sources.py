"""`nodesmith sources`: sets credentials, certificates and proxies for download hosts."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import Column, ago, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.sources import SourceRequest, SourceView

Host = Annotated[str, typer.Argument(metavar="HOST", help="Name, or name:port.", show_default=False)]

COLUMNS: list[Column[SourceView]] = [
    Column("HOST", lambda view: escape(view.host)),
    Column("USERNAME", lambda view: escape(view.username)),
    Column("PASSWORD", lambda view: "set" if view.has_password else ""),
    Column("CA", lambda view: "set" if view.has_ca else ""),
    Column("PROXY", lambda view: "set" if view.has_proxy else ""),
    Column("REALMS", lambda view: escape(", ".join(view.realms)), from_width=100),
    Column("SET", lambda view: ago(view.updated_at)),
    Column("BY", lambda view: escape(view.updated_by)),
]


def register(app: typer.Typer) -> None:
    sources = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    sources.command("ls")(grouped(list_sources))
    sources.command("add")(grouped(add))
    sources.command("rm")(grouped(remove))
    app.add_typer(sources, name="sources", help="Set password, certificates and proxy of download hosts.")


def list_sources(*, link: Link) -> None:
    """List the configured hosts, without passwords."""
    with link.api() as api:
        views = api.sources.list().items
    show_list(views, COLUMNS, as_json=link.as_json, empty_message="No host is configured.")


def add(
    host: Host,
    *,
    username: Annotated[str, typer.Option(help="User name for the host.")] = "",
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM certificates to trust in addition to the system's.")
    ] = None,
    proxy: Annotated[str, typer.Option(metavar="URL", help="Reach the host through this proxy.")] = "",
    realm: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Token service that may also receive the password; may be repeated."),
    ] = None,
    reason: Reason = "",
    link: Link,
) -> None:
    """Configure access to a host, for nodes and galleries; replaces the previous configuration.

    It is stored encrypted. A node requests it when it downloads from that host, and does not store it.
    """
    body = SourceRequest.model_construct(
        username=username,
        password=_password() if password_stdin else "",
        ca=_certificates(ca),
        proxy=proxy,
        realms=realm or [],
    )
    with link.api() as api:
        view = api.sources.set(host, body, reason=reason)
    if link.as_json:
        return print_json(view)
    return print_line(f"Configured {view.host}.")


def remove(host: Host, *, reason: Reason = "", link: Link) -> None:
    """Remove the configuration of a host."""
    with link.api() as api:
        answer = api.sources.delete(host, reason=reason)
    print_json(answer) if link.as_json else print_line(f"Removed the configuration of {host}.")


def _password() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandFailed(
            "Standard input contains no password.", "Pipe the password to this command.", code="no_password"
        )
    return password


def _certificates(path: Path | None) -> str:
    try:
        return path.read_text() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"{path} cannot be read ({error}).", "Give the path of a PEM file.", code="no_certificates"
        ) from error

"""`nodesmith sessions`: creates sign-in links, and lists and ends browser sessions."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import Column, ago, local_time, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.access import SessionView

COLUMNS: list[Column[SessionView]] = [
    Column("ID", lambda session: session.id),
    Column("ACTOR", lambda session: escape(session.actor), may_wrap=True),
    Column("ROLE", lambda session: session.role),
    Column("SIGNED IN", lambda session: ago(session.signed_in_at)),
    Column("ENDS", lambda session: local_time(session.expires_at)),
]


def register(app: typer.Typer) -> None:
    sessions = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    sessions.command("link")(grouped(link_to_sign_in))
    sessions.command("ls")(grouped(list_sessions))
    sessions.command("end")(grouped(end))
    app.add_typer(sessions, name="sessions", help="Create sign-in links; list and end browser sessions.")


def link_to_sign_in(*, reason: Reason = "", link: Link) -> None:
    """Print a link that signs in one browser, once, with the role of your token. Keep it secret until it was used."""
    with link.api() as api:
        made = api.sessions.create_link(reason=reason)
    if link.as_json:
        return print_json(made)
    print_line(f"Open this in the browser, once, before {local_time(made.expires_at)}:", err=True)
    return print_line(made.url)


def list_sessions(*, link: Link) -> None:
    """List signed-in browsers: your own, or all for an admin."""
    with link.api() as api:
        sessions = api.sessions.list().items
    show_list(sessions, COLUMNS, as_json=link.as_json, empty_message="No browser is signed in.")


def end(
    session: Annotated[str, typer.Argument(metavar="ID", help="Id of the session.", show_default=False)],
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Sign a browser out: its session becomes invalid and its event streams end."""
    with link.api() as api:
        ended = api.sessions.delete(session, reason=reason)
    print_json(ended) if link.as_json else print_line(f"A browser of {ended.actor} is signed out.")

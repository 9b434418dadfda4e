"""`nodesmith backends`: lists the catalogue and changes the backends of nodes."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.commands import backend_changes, logs
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.output.render import Column, make_console, print_json, show, size, table
from nodesmith.cli.output.terminal import print_line
from nodesmith.client import Client
from nodesmith.contracts.http.backends import BackendPage, BackendView

_MAX_LISTED = 20

COLUMNS: list[Column[BackendView]] = [
    Column("NAME", lambda entry: escape(entry.name)),
    Column("VERSION", lambda entry: escape(entry.version)),
    Column("SIZE", lambda entry: size(entry.size), right=True),
    Column("NODES", lambda entry: str(len(entry.nodes) or ""), right=True),
    Column("DESCRIPTION", lambda entry: escape(_hardware(entry) or entry.description.strip()), may_wrap=True),
    Column("OLDER ON", lambda entry: escape(", ".join(entry.upgradable_on)), from_width=120, may_wrap=True),
    Column("GALLERY", lambda entry: escape(entry.gallery), from_width=100),
    Column("SHA256", lambda entry: entry.sha256[:16], from_width=120),
]


def register(app: typer.Typer) -> None:
    backends = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    backends.command("ls")(grouped(list_backends))
    backends.command("show")(grouped(show_backend))
    backend_changes.register(backends)
    logs.register(backends)
    summary = "List and show backends; install, upgrade, roll back, remove; logs, stop."
    app.add_typer(backends, name="backends", help=summary)


def list_backends(
    *,
    search: Annotated[str | None, typer.Option(help="Words in name, description, tags or gallery.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    gallery: Annotated[str | None, typer.Option(help="Only those of this gallery.")] = None,
    link: Link,
) -> None:
    """List the backends of all galleries, newest version first, and the unusable entries with the reason."""
    with link.api() as api:
        page = _whole_list(api, search=search or "", tag=tag or "", gallery=gallery or "")
    if link.as_json:
        return print_json(page.items)
    console = make_console()
    narrowed = search or tag or gallery
    empty_message = "No backend matches." if narrowed else "The galleries are empty."
    show(console, table(page.items, COLUMNS, console.width) if page.items else empty_message)
    return _print_unusable(page)


def _whole_list(api: Client, *, search: str, tag: str, gallery: str) -> BackendPage:
    """Return the first page with the items of all pages."""
    first = api.backends.list(text=search, tag=tag, gallery=gallery)
    if first.next_cursor is None:
        return first
    rest = api.backends.each(text=search, tag=tag, gallery=gallery, cursor=first.next_cursor)
    return first.model_copy(update={"items": [*first.items, *rest]})


def show_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a backend, or gallery@name.")],
    *,
    link: Link,
) -> None:
    """Show all versions of a backend: the source of each, and how an install of it is verified."""
    gallery, _, bare = name.rpartition("@")
    with link.api() as api:
        found = [entry for entry in api.backends.each(gallery=gallery) if entry.name.casefold() == bare.casefold()]
    if not found:
        raise CommandFailed(
            f"No gallery has the backend {name}.", "`nodesmith backends ls` lists them.", code="unknown_backend"
        )
    if link.as_json:
        return print_json(found)
    return print_line("\n\n".join(_describe(entry) for entry in found))


def _describe(entry: BackendView) -> str:
    lines = {
        "backend": f"{entry.id} {entry.version}".rstrip(),
        "": entry.description.strip() or _hardware(entry),
        "source": entry.uri,
        "sha256": entry.sha256,
        "verified": entry.verification,
        "nodes": ", ".join(node.node_name for node in entry.nodes),
    }
    return "\n".join(f"{title:<10}{text}" for title, text in lines.items() if text)


def _print_unusable(page: BackendPage) -> None:
    for bad in page.unusable[:_MAX_LISTED]:
        print_line(f"cannot be used: {bad.gallery}@{bad.name}: {bad.reason}", err=True)
    if len(page.unusable) > _MAX_LISTED:
        more = len(page.unusable) - _MAX_LISTED
        print_line(f"cannot be used: {more} more (`nodesmith galleries ls` counts them)", err=True)


def _hardware(entry: BackendView) -> str:
    """Return the hardware of a meta backend, which has no build itself but names one per kind of hardware."""
    return f"for {', '.join(sorted(entry.capabilities))}" if entry.is_meta else ""

"""`nodesmith backends`: what there is, and putting it on nodes."""

from typing import Annotated

import typer
from rich.markup import escape

from cli import backend_changes, logs
from cli.client import read
from cli.grouped import Link, grouped
from cli.render import Column, make_console, print_json, show, size, table
from contracts.galleries import CatalogueEntry, CataloguePage

_TOLD = 20

COLUMNS: list[Column[CatalogueEntry]] = [
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
    backend_changes.register(backends)
    logs.register(backends)
    summary = "List the backends there are; install, upgrade, roll back, remove; logs, stop."
    app.add_typer(backends, name="backends", help=summary)


def list_backends(
    *,
    search: Annotated[str | None, typer.Option(help="Words in name, description, tags or gallery.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    gallery: Annotated[str | None, typer.Option(help="Only those of this gallery.")] = None,
    link: Link,
) -> None:
    """List the backends of all galleries, newest version first; and what cannot be used, and why."""
    with link.api() as api:
        page = read(CataloguePage, api.get("/api/backends", term=search, tag=tag, gallery=gallery))
    if link.as_json:
        return print_json(page.backends)
    console = make_console()
    narrowed = search or tag or gallery
    nothing = "No backend is like that." if narrowed else "The galleries are empty."
    show(console, table(page.backends, COLUMNS, console.width) if page.backends else nothing)
    return _tell_unusable(page)


def _tell_unusable(page: CataloguePage) -> None:
    for bad in page.unusable[:_TOLD]:
        typer.echo(f"cannot be used: {bad.gallery}@{bad.name}: {bad.reason}", err=True)
    if len(page.unusable) > _TOLD:
        typer.echo(
            f"cannot be used: {len(page.unusable) - _TOLD} more (`nodesmith galleries ls` counts them)", err=True
        )


def _hardware(entry: CatalogueEntry) -> str:
    """A meta has no build of its own: it names those for each kind of hardware."""
    return f"for {', '.join(sorted(entry.capabilities))}" if entry.isMeta else ""

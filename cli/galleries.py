"""`nodesmith galleries`: where backends come from."""

from typing import Annotated

import typer
from rich.markup import escape

from cli.client import read, segment
from cli.grouped import Link, grouped
from cli.options import Reason
from cli.render import Column, ago, print_json, show_list
from contracts.galleries import GalleryRequest, GalleryView

GalleryName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the gallery.", show_default=False)]

COLUMNS: list[Column[GalleryView]] = [
    Column("NAME", lambda view: escape(view.name)),
    Column("BACKENDS", lambda view: str(view.entries), right=True),
    Column("UNUSABLE", lambda view: str(view.unusable or ""), right=True),
    Column("READ", lambda view: ago(view.fetched_at) if view.fetched_at else ""),
    Column("ADDRESS", lambda view: escape(view.url), may_wrap=True),
    Column("TROUBLE", lambda view: escape(view.error), may_wrap=True),
]


def register(app: typer.Typer) -> None:
    galleries = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    galleries.command("ls")(grouped(list_galleries))
    galleries.command("add")(grouped(add))
    galleries.command("rm")(grouped(remove))
    galleries.command("refresh")(grouped(refresh))
    app.add_typer(galleries, name="galleries", help="List, add, remove and refresh galleries of backends.")


def list_galleries(*, link: Link) -> None:
    """List the galleries in the order in which they win, and how their last reading went."""
    with link.api() as api:
        views = [read(GalleryView, entry) for entry in api.get("/api/galleries")]
    show_list(views, COLUMNS, as_json=link.as_json)


def add(
    name: GalleryName,
    address: Annotated[
        str, typer.Argument(metavar="URL", help="http(s)://, file:// or github:owner/repository/path@branch.")
    ],
    *,
    mirror: Annotated[
        list[str] | None, typer.Option("--mirror", metavar="URL", help="Asked when the first fails; may be repeated.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Take archives without a sha256 from it.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Add a gallery in LocalAI's format. It is read first: one that lists nothing usable is not added."""
    request = GalleryRequest.model_construct(name=name, url=address, mirrors=mirror or [], insecure=insecure)
    with link.api() as api:
        view = read(GalleryView, api.post("/api/galleries", request, reason=reason))
    if link.as_json:
        return print_json(view)
    unusable = f", {view.unusable} of them cannot be used" if view.unusable else ""
    return typer.echo(f"Added {view.name}: {view.entries + view.unusable} backends{unusable}.")


def remove(name: GalleryName, *, reason: Reason = None, link: Link) -> None:
    """Remove a gallery. What was installed from it stays where it is."""
    with link.api() as api:
        answer = api.delete(f"/api/galleries/{segment(name)}", reason=reason)
    print_json(answer) if link.as_json else typer.echo(f"Removed {name}.")


def refresh(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Default: all.")] = None,
    *,
    link: Link,
) -> None:
    """Read a gallery again, now. One that fails keeps its last good copy and says why."""
    with link.api() as api:
        path = f"/api/galleries/{segment(name)}/refresh" if name else "/api/galleries/refresh"
        answer = api.post(path)
    entries = answer if isinstance(answer, list) else [answer]
    show_list([read(GalleryView, entry) for entry in entries], COLUMNS, as_json=link.as_json)

"""`nodesmith galleries`: manages the sources of backends."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.commands import gallery_signing
from nodesmith.cli.option_groups import Link, given, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import Column, ago, local_time, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.galleries import GalleryRequest, GalleryView
from nodesmith.domain.gallery_trust import GalleryPolicy

GalleryName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the gallery.", show_default=False)]


def _policy(view: GalleryView) -> str:
    """Format the policy, with the number of required keys if there are any."""
    return f"{view.policy} ({view.threshold} of {len(view.key_ids)} keys)" if view.key_ids else str(view.policy)


COLUMNS: list[Column[GalleryView]] = [
    Column("NAME", lambda view: escape(view.name)),
    Column("BACKENDS", lambda view: str(view.entries), right=True),
    Column("UNUSABLE", lambda view: str(view.unusable or ""), right=True),
    Column("POLICY", _policy),
    Column("INDEX", lambda view: str(view.index_version) if view.signed_index else "", right=True, from_width=100),
    Column("EXPIRES", lambda view: local_time(view.index_expires_at) if view.index_expires_at else "", from_width=100),
    Column("REFRESHED", lambda view: ago(view.fetched_at) if view.fetched_at else ""),
    Column("ADDRESS", lambda view: escape(view.url), may_wrap=True),
    Column("ERROR", lambda view: escape(view.error), may_wrap=True),
]


def register(app: typer.Typer) -> None:
    galleries = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    galleries.command("ls")(grouped(list_galleries))
    galleries.command("add")(grouped(add))
    galleries.command("rm")(grouped(remove))
    galleries.command("refresh")(grouped(refresh))
    gallery_signing.register(galleries)
    app.add_typer(galleries, name="galleries", help="List, add, remove, refresh, sign and trust galleries of backends.")


def list_galleries(*, link: Link) -> None:
    """List the galleries in order of precedence, with the result of the last refresh."""
    with link.api() as api:
        views = api.galleries.list().items
    show_list(views, COLUMNS, as_json=link.as_json)


def add(
    name: GalleryName,
    address: Annotated[
        str, typer.Argument(metavar="URL", help="http(s)://, file:// or github:owner/repository/path@branch.")
    ],
    *,
    mirror: Annotated[
        list[str] | None, typer.Option("--mirror", metavar="URL", help="Used when the URL fails; may be repeated.")
    ] = None,
    policy: Annotated[
        GalleryPolicy, typer.Option(help="none: allow archives without a sha256; `galleries trust` sets `signed`.")
    ] = GalleryPolicy.DIGEST,
    reason: Reason = "",
    link: Link,
) -> None:
    """Add a gallery in LocalAI's format. It is refused if it lists no usable backend."""
    request = GalleryRequest.model_construct(name=name, url=address, policy=policy, **given(mirrors=mirror))
    with link.api() as api:
        view = api.galleries.create(request, reason=reason)
    if link.as_json:
        return print_json(view)
    unusable = f", {view.unusable} of them cannot be used" if view.unusable else ""
    return print_line(f"Added {view.name}: {view.entries + view.unusable} backends{unusable}.")


def remove(name: GalleryName, *, reason: Reason = "", link: Link) -> None:
    """Remove a gallery. Backends that were installed from it stay on the nodes."""
    with link.api() as api:
        answer = api.galleries.delete(name, reason=reason)
    print_json(answer) if link.as_json else print_line(f"Removed {name}.")


def refresh(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Default: all.")] = None,
    *,
    link: Link,
) -> None:
    """Refresh a gallery now. If that fails, its last good copy stays in use and the error is shown."""
    with link.api() as api:
        views = [api.galleries.refresh(name)] if name else api.galleries.refresh_all().items
    show_list(views, COLUMNS, as_json=link.as_json)

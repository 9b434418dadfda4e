"""`nodesmith nodes label|inventory`: what a node is called by, and what it has."""

from typing import Annotated

import typer
from rich.markup import escape

from cli.client import ApiClient, read, segment
from cli.failures import CommandFailed
from cli.grouped import Link, grouped
from cli.options import NodeName, Reason
from cli.render import Column, ago, facts, local_time, make_console, print_json, table
from cli.render import show as display
from contracts.inventory import NodeInventory
from contracts.messages import Installed

Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE | KEY-]...", help="Set a label, or remove it; none: show them.", show_default=False
    ),
]
Refresh = Annotated[bool, typer.Option("--refresh", help="Ask the node itself, now.")]

_COLUMNS: list[Column[Installed]] = [
    Column("BACKEND", lambda installed: escape(installed.name), may_wrap=True),
    Column("VERSION", lambda installed: escape(installed.version)),
    Column("BEFORE", lambda installed: escape(installed.previous_version)),
    Column("INSTALLED", lambda installed: local_time(installed.installed_at)),
    Column("DIGEST", lambda installed: escape(installed.digest), from_width=120),
    Column("URI", lambda installed: escape(installed.uri), from_width=180, may_wrap=True),
]


def register(nodes: typer.Typer) -> None:
    nodes.command("label")(grouped(label))
    nodes.command("inventory")(grouped(inventory))


def label(
    node: NodeName,
    changes: Changes = None,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Set (KEY=VALUE) and remove (KEY-) labels of a node, and show what it has then."""
    wanted, unwanted = _understood(changes or [])
    with link.api() as api:
        labels = _changed(api, f"/api/nodes/{segment(node)}/labels", wanted, unwanted, reason)
    if link.as_json:
        return print_json(labels)
    return display(make_console(), facts([(escape(key), escape(value) or "-") for key, value in labels.items()]))


def _understood(changes: list[str]) -> tuple[dict[str, str], list[str]]:
    wanted, unwanted = {}, []
    for change in changes:
        key, sign, value = change.partition("=")
        if sign:
            wanted[key] = value
        elif change.endswith("-"):
            unwanted.append(change[:-1])
        else:
            raise CommandFailed(
                f"{change} is neither KEY=VALUE nor KEY-.", "Set with zone=a, remove with zone-.", code="usage"
            )
    return wanted, unwanted


def _changed(
    api: ApiClient, path: str, wanted: dict[str, str], unwanted: list[str], reason: str | None
) -> dict[str, str]:
    if wanted:
        api.patch(path, wanted, reason=reason)
    for key in unwanted:
        api.delete(f"{path}/{segment(key)}", reason=reason)
    labels: dict[str, str] = api.get(path)
    return labels


def inventory(
    node: NodeName,
    *,
    refresh: Refresh = False,
    link: Link,
) -> None:
    """Show what a node has installed, as it said when it was last asked."""
    path = f"/api/nodes/{segment(node)}/inventory"
    with link.api() as api:
        seen = read(NodeInventory, api.post(f"{path}/refresh") if refresh else api.get(path))
    if link.as_json:
        return print_json(seen)
    console = make_console()
    if seen.backends:
        display(console, table(seen.backends, _COLUMNS, console.width))
    return typer.echo(_when(seen))


def _when(seen: NodeInventory) -> str:
    if seen.seen_at is None:
        return f"{seen.node_name} has not been asked yet: it is asked as soon as it is there."
    nothing = "" if seen.backends else "has nothing installed; "
    return f"{seen.node_name} {nothing}said so {ago(seen.seen_at)}."

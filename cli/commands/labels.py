"""`nodesmith nodes label|inventory`: changes a node's labels, and shows its installed backends."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import NodeName, Reason
from nodesmith.cli.output.render import Column, ago, facts, local_time, make_console, print_json, table
from nodesmith.cli.output.render import show as display
from nodesmith.cli.output.terminal import print_line
from nodesmith.client import Client
from nodesmith.contracts.http.inventory import NodeInventory
from nodesmith.contracts.nats.messages import Installed

Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE | KEY-]...", help="Set or remove a label; omit to show them.", show_default=False
    ),
]
Refresh = Annotated[bool, typer.Option("--refresh", help="Query the node now.")]

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
    reason: Reason = "",
    link: Link,
) -> None:
    """Set (KEY=VALUE) and remove (KEY-) labels of a node, and show the result."""
    added, removed = _parse_changes(changes or [])
    with link.api() as api:
        labels = _apply_changes(api, node, added, removed, reason)
    if link.as_json:
        return print_json(labels)
    return display(make_console(), facts([(escape(key), escape(value) or "-") for key, value in labels.items()]))


def _parse_changes(changes: list[str]) -> tuple[dict[str, str], list[str]]:
    added, removed = {}, []
    for change in changes:
        key, sign, value = change.partition("=")
        if sign:
            added[key] = value
        elif change.endswith("-"):
            removed.append(change[:-1])
        else:
            raise CommandFailed(
                f"{change} is neither KEY=VALUE nor KEY-.", "Set with zone=a, remove with zone-.", code="usage"
            )
    return added, removed


def _apply_changes(api: Client, node: str, added: dict[str, str], removed: list[str], reason: str) -> dict[str, str]:
    if added:
        api.nodes.update_labels(node, added, reason=reason)
    for key in removed:
        api.nodes.delete_label(node, key, reason=reason)
    return api.nodes.labels(node)


def inventory(
    node: NodeName,
    *,
    refresh: Refresh = False,
    link: Link,
) -> None:
    """Show the backends of a node, as it last reported them."""
    with link.api() as api:
        report = api.nodes.refresh_inventory(node) if refresh else api.nodes.inventory(node)
    if link.as_json:
        return print_json(report)
    console = make_console()
    if report.backends:
        display(console, table(report.backends, _COLUMNS, console.width))
    return print_line(_describe_age(report))


def _describe_age(report: NodeInventory) -> str:
    if report.seen_at is None:
        return f"{report.node_name} has not reported yet: it is queried as soon as it is online."
    empty = "" if report.backends else "has no backends installed; "
    return f"{report.node_name} {empty}reported {ago(report.seen_at)}."

"""`nodesmith nodes`: lists, shows and approves nodes."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.commands import invite, labels, node_lifecycle, overrides
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import NodeName, Reason
from nodesmith.cli.output.render import Column, ago, colored, facts, local_time, make_console, print_json, size, table
from nodesmith.cli.output.render import show as display
from nodesmith.cli.output.terminal import print_line
from nodesmith.client import Client, Refused
from nodesmith.contracts.http.inventory import NodeInventory
from nodesmith.contracts.http.nodes import NodeView
from nodesmith.contracts.nats.presence import BackendConfinement
from nodesmith.domain.node import NodeStatus

Where = Annotated[
    str | None,
    typer.Option(
        metavar="SELECTOR",
        help="Only nodes with these labels: 'zone=a,gpu.vram in (24GB,48GB),!quarantine'.",
        show_default=False,
    ),
]
Statuses = Annotated[
    list[str] | None,
    typer.Option(metavar="STATUS", help="Only nodes in this status; may be repeated.", show_default=False),
]
Having = Annotated[
    str | None, typer.Option("--backend", help="Only nodes with this backend installed.", show_default=False)
]
Containing = Annotated[
    str | None, typer.Option("--text", help="Only nodes with this text in name, id or address.", show_default=False)
]
Sort = Annotated[
    str | None,
    typer.Option(help="name, status, last_heartbeat or created_at; prefix - reverses the order.", show_default=False),
]

_NONE_YET = "No node has registered yet. Agents register when they start: `nodesmith agent --help`."
_NONE_MATCH = "No node matches."

COLUMNS: list[Column[NodeView]] = [
    Column("NAME", lambda node: escape(node.name), may_wrap=True),
    Column("STATUS", lambda node: colored(node.status)),
    Column("HEARTBEAT", lambda node: ago(node.last_heartbeat)),
    Column("OPS", lambda node: str(node.open_operations), right=True),
    Column("DISK FREE", lambda node: size(node.available_disk), right=True),
    Column("RAM FREE", lambda node: size(node.available_ram), right=True, from_width=100),
    Column("PROTOCOL", lambda node: str(int(node.protocol)), right=True, from_width=100),
    Column("ID", lambda node: node.id, from_width=120),
]


def register(app: typer.Typer) -> None:
    nodes = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    nodes.command("ls")(grouped(list_nodes))
    nodes.command("show")(grouped(show))
    nodes.command("approve")(grouped(approve))
    labels.register(nodes)
    overrides.register(nodes)
    node_lifecycle.register(nodes)
    invite.register(nodes)
    app.add_typer(nodes, name="nodes", help="List and show nodes; approve, drain, resume, remove.")


def list_nodes(
    *,
    where: Where = None,
    status: Statuses = None,
    backend: Having = None,
    text: Containing = None,
    sort: Sort = None,
    link: Link,
) -> None:
    """List the nodes with their current status."""
    with link.api() as api:
        nodes = list(
            api.nodes.each(
                selector=where or "", status=status or (), backend=backend or "", text=text or "", sort=sort or ""
            )
        )
    if link.as_json:
        return print_json(nodes)
    console = make_console()
    if not nodes:
        return console.print(_NONE_MATCH if where or status or backend or text else _NONE_YET)
    display(console, table(nodes, COLUMNS, console.width))
    return _print_pending(nodes)


def _print_pending(nodes: list[NodeView]) -> None:
    for node in nodes:
        if node.status is NodeStatus.PENDING:
            print_line(f"\n{node.name} waits for approval: nodesmith nodes approve {node.name}")


def show(node: NodeName, *, link: Link) -> None:
    """Show one node: its properties, its status, and its backends: as the node says now, else as it last said."""
    with link.api() as api:
        view = api.nodes.get(node)
        report = _report(api, view)
    if link.as_json:
        known = [each.model_dump(mode="json") for each in report.backends] if report.seen_at else None
        return print_json({**view.model_dump(mode="json"), "backends": known})
    return display(make_console(), facts([*describe(view), ("backends", escape(_backends(report)))]))


def _report(api: Client, node: NodeView) -> NodeInventory:
    """What a healthy node says now; of any other node, or one that does not answer, what it said last."""
    if node.status is NodeStatus.HEALTHY:
        try:
            return api.nodes.backends(node.id)
        except Refused as refused:
            if not refused.is_retryable:
                raise
    return api.nodes.inventory(node.id)


def _backends(report: NodeInventory) -> str:
    if report.seen_at is None:
        return "unknown: the node has not reported yet"
    before = {each.name: f" (before: {each.previous_version})" for each in report.backends if each.previous_version}
    listed = ", ".join(f"{each.name} {each.version}{before.get(each.name, '')}" for each in report.backends)
    return f"{listed or 'none'} (reported {ago(report.seen_at)})"


def describe(node: NodeView) -> list[tuple[str, str]]:
    labelled = ", ".join(f"{name}={value}" for name, value in sorted(node.labels.items()))
    return [
        ("name", escape(node.name)),
        ("id", node.id),
        ("status", colored(node.status)),
        ("type", f"{node.node_type}, protocol {int(node.protocol)}"),
        ("address", escape(node.address)),
        ("agent", escape(node.agent_version)),
        ("approved", local_time(node.approved_at) or f"not yet: nodesmith nodes approve {escape(node.name)}"),
        ("drained", local_time(node.drained_at)),
        ("leaving", local_time(node.leaving_at)),
        ("left", local_time(node.left_at)),
        ("unreachable", local_time(node.unreachable_since)),
        ("rival", _rival(node)),
        ("heartbeat", ago(node.last_heartbeat)),
        ("disk", _free_of(node.available_disk, node.total_disk)),
        ("ram", _free_of(node.available_ram, node.total_ram)),
        ("vram", _free_of(node.available_vram, node.total_vram)),
        ("gpu", escape(node.gpu_vendor or "")),
        ("confinement", escape(_confinement(node.confinement))),
        ("labels", escape(labelled)),
        ("operations", f"{node.open_operations} open"),
    ]


def _rival(node: NodeView) -> str:
    """Report a second process with this node's identity, most likely on a copy of the machine."""
    if node.rival_seen_at is None:
        return ""
    return f"another process claimed to be this node {ago(node.rival_seen_at)} and was refused"


def _confinement(confinement: BackendConfinement | None) -> str:
    """Describe how the agent confines its backends; empty when it reports nothing."""
    if confinement is None:
        return ""
    gaps = f"not hidden: {', '.join(confinement.missing)}" if confinement.missing else "nothing missing"
    return f"{confinement.mode}: Landlock {confinement.landlock_abi or 'none'}, user {confinement.user}, {gaps}"


def _free_of(free: int | None, total: int | None) -> str:
    return f"{size(free)} free of {size(total)}" if total else ""


def approve(
    node: NodeName,
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Approve a node: it receives credentials for the bus and gets operations."""
    with link.api() as api:
        view = api.nodes.approve(node, reason=reason)
    if link.as_json:
        return print_json(view)
    return print_line(f"{view.name} is approved; its status is {view.status}.")

"""`nodesmith nodes`: who is there, how they are, and who waits for approval."""

from typing import Annotated

import typer
from rich.markup import escape

from cli import invite, labels, node_life, overrides
from cli.client import ApiClient, Given, read, segment
from cli.failures import CommandFailed
from cli.grouped import Link, grouped
from cli.options import NodeName, Reason
from cli.render import Column, ago, facts, local_time, make_console, print_json, size, table, word
from cli.render import show as display
from contracts.messages import Installed
from contracts.node_http import NodeView
from domain.node import NodeStatus

Where = Annotated[
    str | None,
    typer.Option(
        metavar="SELECTOR",
        help="Only with these labels: 'zone=a,gpu.vram in (24GB,48GB),!quarantine'.",
        show_default=False,
    ),
]
Statuses = Annotated[
    list[str] | None,
    typer.Option(metavar="STATUS", help="Only in this status; may be given more than once.", show_default=False),
]
Having = Annotated[str | None, typer.Option("--backend", help="Only with this backend installed.", show_default=False)]
Containing = Annotated[
    str | None, typer.Option("--text", help="Only with this in the name, the id or the address.", show_default=False)
]
Sort = Annotated[
    str | None,
    typer.Option(help="name, status, last_heartbeat or created_at; - in front turns it round.", show_default=False),
]

_NONE_YET = "No node has registered yet. An agent registers by itself: `nodesmith agent --help`."
_NONE_MATCH = "No node matches."

COLUMNS: list[Column[NodeView]] = [
    Column("NAME", lambda node: escape(node.name), may_wrap=True),
    Column("STATUS", lambda node: word(node.status)),
    Column("HEARD", lambda node: ago(node.last_heartbeat)),
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
    node_life.register(nodes)
    invite.register(nodes)
    app.add_typer(nodes, name="nodes", help="List nodes, look at one; approve, drain, resume, remove.")


def list_nodes(
    *,
    where: Where = None,
    status: Statuses = None,
    backend: Having = None,
    text: Containing = None,
    sort: Sort = None,
    link: Link,
) -> None:
    """List the nodes, with the status each has at this moment."""
    asked: dict[str, Given] = {"selector": where, "status": status, "backend": backend, "text": text, "sort": sort}
    with link.api() as api:
        nodes = [read(NodeView, entry) for entry in api.get("/api/nodes", **asked)]
    if link.as_json:
        return print_json(nodes)
    console = make_console()
    if not nodes:
        return console.print(_NONE_MATCH if any(asked.values()) else _NONE_YET)
    display(console, table(nodes, COLUMNS, console.width))
    return _hint_at_pending(nodes)


def _hint_at_pending(nodes: list[NodeView]) -> None:
    for node in nodes:
        if node.status is NodeStatus.PENDING:
            typer.echo(f"\n{node.name} waits for approval: nodesmith nodes approve {node.name}")


def show(node: NodeName, *, link: Link) -> None:
    """Show one node: the facts, the status that follows from them, and what it says is on its disk."""
    with link.api() as api:
        view = read(NodeView, api.get(f"/api/nodes/{segment(node)}"))
        backends = _on_disk(api, view)
    if link.as_json:
        listed = None if backends is None else [entry.model_dump(mode="json") for entry in backends]
        return print_json({**view.model_dump(mode="json"), "backends": listed})
    return display(make_console(), facts([*describe(view), ("backends", escape(_backends(backends)))]))


def _on_disk(api: ApiClient, node: NodeView) -> list[Installed] | None:
    """Ask the node; None when it cannot be asked."""
    if node.status not in (NodeStatus.HEALTHY, NodeStatus.DRAINING):
        return None
    try:
        return [read(Installed, entry) for entry in api.get(f"/api/nodes/{segment(node.id)}/backends")]
    except CommandFailed as failure:
        if failure.may_pass:
            return None
        raise


def _backends(listed: list[Installed] | None) -> str:
    if listed is None:
        return "the node cannot be asked now"
    before = {entry.name: f" (before: {entry.previous_version})" for entry in listed if entry.previous_version}
    return ", ".join(f"{entry.name} {entry.version}{before.get(entry.name, '')}" for entry in listed) or "none"


def describe(node: NodeView) -> list[tuple[str, str]]:
    labelled = ", ".join(f"{name}={value}" for name, value in sorted(node.labels.items()))
    return [
        ("name", escape(node.name)),
        ("id", node.id),
        ("status", word(node.status)),
        ("type", f"{node.node_type}, protocol {int(node.protocol)}"),
        ("address", escape(node.address)),
        ("agent", escape(node.agent_version)),
        ("approved", local_time(node.approved_at) or f"not yet: nodesmith nodes approve {escape(node.name)}"),
        ("drained", local_time(node.drained_at)),
        ("leaving", local_time(node.leaving_at)),
        ("left", local_time(node.left_at)),
        ("unreachable", local_time(node.unreachable_since)),
        ("rival", _rival(node)),
        ("heard", ago(node.last_heartbeat)),
        ("disk", _free_of(node.available_disk, node.total_disk)),
        ("ram", _free_of(node.available_ram, node.total_ram)),
        ("vram", _free_of(node.available_vram, node.total_vram)),
        ("gpu", escape(node.gpu_vendor or "")),
        ("labels", escape(labelled)),
        ("operations", f"{node.open_operations} open"),
    ]


def _rival(node: NodeView) -> str:
    """A copy of the machine, most likely."""
    if node.rival_seen_at is None:
        return ""
    return f"another process claimed to be this node {ago(node.rival_seen_at)} and was refused"


def _free_of(free: int | None, total: int | None) -> str:
    return f"{size(free)} free of {size(total)}" if total else ""


def approve(
    node: NodeName,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Approve a node: from now on it gets work, and its credentials for the bus."""
    with link.api() as api:
        api.post(f"/api/nodes/{segment(node)}/approve", reason=reason)
        view = read(NodeView, api.get(f"/api/nodes/{segment(node)}"))
    if link.as_json:
        return print_json(view)
    return typer.echo(f"{view.name} is approved; its status is {view.status}.")

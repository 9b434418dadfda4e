"""`nodesmith ops`: lists, shows and watches operations."""

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from nodesmith.cli.commands import history, operation_actions
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.output.render import (
    Column,
    ago,
    colored,
    duration,
    facts,
    local_time,
    make_console,
    print_json,
    size,
    table,
)
from nodesmith.cli.output.render import show as display
from nodesmith.cli.output.watch import describe_change, gauge, headline, watch
from nodesmith.contracts.http.operations import OperationDetail, OperationEvent, OperationView
from nodesmith.contracts.nats.messages import Installed
from nodesmith.domain.operation import OPEN
from nodesmith.domain.operation_filter import OperationScope

OpId = Annotated[str, typer.Argument(metavar="ID", help="Id of the operation.", show_default=False)]

COLUMNS: list[Column[OperationView]] = [
    Column("ID", lambda op: op.op_id),
    Column("NODE", lambda op: escape(op.node_name)),
    Column("BACKEND", lambda op: escape(f"{op.backend} {op.version}".rstrip())),
    Column("STATE", lambda op: colored(op.state)),
    Column("%", lambda op: f"{op.progress.percentage:.0f}" if op.progress.phase else "", right=True),
    Column("AGE", lambda op: ago(op.created_at), from_width=110),
    Column("KIND", lambda op: str(op.kind), from_width=130),
    Column("WHAT", lambda op: escape(describe_change(op)), from_width=130, may_wrap=True),
]

TIMELINE: list[Column[OperationEvent]] = [
    Column("WHEN", lambda event: local_time(event.at)),
    Column("STATE", lambda event: colored(event.state)),
    Column("TRY", lambda event: str(event.attempt or ""), right=True),
    Column("WHAT", lambda event: escape(describe_change(event)), may_wrap=True),
]


def register(app: typer.Typer) -> None:
    operations = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    operations.command("ls")(grouped(list_operations))
    operations.command("show")(grouped(show))
    operations.command("watch")(grouped(watch_operation))
    operation_actions.register(operations)
    history.register(operations)
    summary = "List, show, watch, cancel, retry and dismiss operations; their history."
    app.add_typer(operations, name="ops", help=summary)


def list_operations(
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also succeeded and cancelled operations.")] = False,
    node: Annotated[str | None, typer.Option(help="Only operations of this node.", show_default=False)] = None,
    state: Annotated[str | None, typer.Option(help="Only operations in this state.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many, newest first.")] = 50,
    link: Link,
) -> None:
    """List open operations, and failed ones that were not dismissed."""
    scope = OperationScope.ALL if everything else OperationScope.LIVE
    with link.api() as api:
        page = api.operations.list(scope=scope, node=node, state=state, limit=limit)
    if link.as_json:
        return print_json(page.items)
    console = make_console()
    if page.stale_since:
        console.print(f"[yellow]Temporal does not answer: this list is from {local_time(page.stale_since)}.[/]")
    if not page.items:
        return console.print("No operation is open." if not everything else "There are no operations yet.")
    return display(console, table(page.items, COLUMNS, console.width))


def show(op_id: OpId, *, link: Link) -> None:
    """Show one operation: its state, the reason, and its timeline."""
    with link.api() as api:
        operation = api.operations.get(op_id)
    if link.as_json:
        return print_json(operation)
    console = make_console()
    return display(console, page(operation, console.width))


def page(operation: OperationDetail, width: int) -> RenderableType:
    parts: list[RenderableType] = [facts(describe(operation)), *_link(operation)]
    if operation.timeline:
        parts += ["", table(operation.timeline, TIMELINE, width)]
    return Group(*parts)


def _link(operation: OperationDetail) -> list[Text]:
    """Return the URL of the run in the Temporal Web UI as one unbroken line, so that it can be opened."""
    return [Text(operation.temporal_url, no_wrap=True, overflow="ignore")] if operation.temporal_url else []


def describe(operation: OperationDetail) -> list[tuple[str, str]]:
    is_open = operation.state in OPEN
    return [
        ("operation", operation.op_id),
        ("what", escape(f"{operation.kind} {operation.backend} {operation.version}".rstrip())),
        ("node", escape(f"{operation.node_name} ({operation.node_id})")),
        ("state", colored(operation.state) + ("  (stalled: no byte for a minute)" if operation.stalled else "")),
        ("", escape(headline(operation))),
        ("remedy", escape(operation.remedy)),
        ("progress", escape(gauge(operation.progress)) if is_open and operation.progress.phase else ""),
        ("attempt", str(operation.attempt or "")),
        ("before", escape(_installed(operation.before))),
        ("after", escape(_installed(operation.after))),
        ("changed", {True: "yes", False: "no, it was already installed", None: ""}[operation.changed]),
        ("fetched", _fetched(operation)),
        ("source", escape(operation.uri)),
        ("verified", escape(operation.verified)),
        ("sha256", operation.sha256),
        ("batch", operation.batch_id or ""),
        ("retry of", operation.retry_of or ""),
        ("requested by", escape(operation.requested_by)),
        ("reason", escape(operation.note)),
        ("cancelled by", escape(operation.cancelled_by)),
        ("requested", local_time(operation.created_at)),
        ("ended", _ended(operation)),
        ("run", escape(operation.workflow_id)),
    ]


def _installed(entry: Installed | None) -> str:
    return f"{entry.name} {entry.version} {entry.digest}".strip() if entry else ""


def _fetched(operation: OperationDetail) -> str:
    if not (operation.bytes_fetched or operation.bytes_reused):
        return ""
    return f"{size(operation.bytes_fetched)}, {size(operation.bytes_reused)} taken from partial downloads"


def _ended(operation: OperationDetail) -> str:
    if operation.ended_at is None:
        return ""
    took = duration((operation.ended_at - operation.created_at).total_seconds())
    return f"{local_time(operation.ended_at)}, after {took}"


def watch_operation(op_id: OpId, *, link: Link) -> None:
    """Watch one operation until it ends.

    Exit code: 0 if it succeeded, 1 if it did not, 130 after Ctrl-C (the operation continues).
    """
    with link.api() as api:
        raise typer.Exit(watch(api, op_id, as_json=link.as_json))

"""`nodesmith ops history|pending`: lists ended operations, and summarizes open ones."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated

import typer
from rich.console import Group
from rich.markup import escape

from nodesmith.cli.commands.tokens import seconds
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.output.render import (
    Column,
    ago,
    colored,
    duration,
    local_time,
    make_console,
    print_json,
    show_list,
    table,
)
from nodesmith.cli.output.render import show as display
from nodesmith.contracts.http.operation_groups import PendingWork
from nodesmith.contracts.http.operations import OperationView
from nodesmith.domain.operation_filter import OperationScope

_PAGE = 1000


def _took(operation: OperationView) -> str:
    ended = operation.ended_at
    return duration((ended - operation.created_at).total_seconds()) if ended else ""


ENDED: list[Column[OperationView]] = [
    Column("ENDED", lambda op: local_time(op.ended_at)),
    Column("STATE", lambda op: colored(op.state)),
    Column("WHAT", lambda op: escape(f"{op.kind} {op.backend} {op.version}".rstrip())),
    Column("NODE", lambda op: escape(op.node_name)),
    Column("TOOK", _took, from_width=100),
    Column("BY", lambda op: escape(op.requested_by), from_width=110),
    Column("ID", lambda op: op.op_id, from_width=120),
    Column("WHY", lambda op: escape(op.message) if op.reason else "", from_width=150, may_wrap=True),
]

PENDING: list[Column[PendingWork]] = [
    Column("NAME", lambda work: escape(work.name)),
    Column("OPEN", lambda work: str(work.total), right=True),
    Column("STATES", lambda work: _format_counts(work.states), may_wrap=True),
    Column("WAITS FOR", lambda work: _format_counts(work.reasons), may_wrap=True),
    Column("OLDEST", lambda work: ago(work.oldest)),
    Column("NEXT TRY", lambda work: local_time(work.next_try), from_width=110),
]


def register(operations: typer.Typer) -> None:
    operations.command("history")(grouped(history))
    operations.command("pending")(grouped(pending))


def history(
    *,
    node: Annotated[str | None, typer.Option(help="Only operations of this node.", show_default=False)] = None,
    backend: Annotated[str | None, typer.Option(help="Only operations of this backend.", show_default=False)] = None,
    state: Annotated[
        str | None, typer.Option(help="Only operations that ended in this state.", show_default=False)
    ] = None,
    batch: Annotated[str | None, typer.Option(help="Only operations of this batch.", show_default=False)] = None,
    since: Annotated[str | None, typer.Option(help="Only the last 15m, 12h, 7d.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, newest first.")] = 50,
    link: Link,
) -> None:
    """Show ended operations, newest first. They are kept for 90 days."""
    began = datetime.now(UTC) - timedelta(seconds=seconds(since) or 0) if since else None
    with link.api() as api:
        found = api.operations.each(
            scope=OperationScope.ENDED,
            node=node,
            backend=backend,
            state=state,
            batch=batch,
            since=began,
            limit=min(limit, _PAGE),
        )
        operations = list(islice(found, limit))
    show_list(operations, ENDED, as_json=link.as_json, empty_message="No operation has ended yet.")


def pending(*, link: Link) -> None:
    """Show open operations per node and per backend, and what they wait for."""
    with link.api() as api:
        view = api.operations.pending()
    if link.as_json:
        return print_json(view)
    console = make_console()
    if not view.total:
        return console.print("No operation is open.")
    by_node, by_backend = (table(works, PENDING, console.width) for works in (view.nodes, view.backends))
    return display(console, Group("by node", by_node, "", "by backend", by_backend))


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in sorted(counts.items()))

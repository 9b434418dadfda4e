"""`nodesmith audit`: who changed what, and why."""

import json
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any

import typer
from rich.markup import escape

from nodesmith.cli.commands.tokens import seconds
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.output.render import Column, local_time, show_list
from nodesmith.contracts.http.access import AuditEntry
from nodesmith.domain.audit_change import ChangeState

_PAGE = 1000

COLUMNS: list[Column[AuditEntry]] = [
    Column("WHEN", lambda entry: local_time(entry.at)),
    Column("WHO", lambda entry: escape(entry.actor), may_wrap=True),
    Column("WHAT", lambda entry: escape(entry.action)),
    Column("TARGET", lambda entry: escape(entry.target), may_wrap=True),
    Column("CHANGE", lambda entry: escape(change(entry)), from_width=120, may_wrap=True),
    Column("REASON", lambda entry: escape(entry.reason), may_wrap=True),
]


def register(app: typer.Typer) -> None:
    app.command("audit")(grouped(audit))


def audit(
    *,
    actor: Annotated[str | None, typer.Option(help="Only changes by this token.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help="Only changes to this node, operation or token.", show_default=False)
    ] = None,
    action: Annotated[str | None, typer.Option(help="Only this action: nodes.approve, ...", show_default=False)] = None,
    since: Annotated[str | None, typer.Option(help="Only the last 15m, 12h, 7d.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, newest first.")] = 50,
    link: Link,
) -> None:
    """Show who changed what, when and why, newest first. Entries are kept for 400 days."""
    began = datetime.now(UTC) - timedelta(seconds=seconds(since) or 0) if since else None
    with link.api() as api:
        found = api.audit.each(actor=actor, target=target, action=action, since=began, limit=min(limit, _PAGE))
        entries = list(islice(found, limit))
    show_list(entries, COLUMNS, as_json=link.as_json, empty_message="No changes were recorded.")


def change(entry: AuditEntry) -> str:
    """Describe the change on one line: the values before and after."""
    if entry.outcome is ChangeState.UNKNOWN:
        return f"outcome unknown; requested: {_format_values(entry.after) or 'this'}"
    if entry.before is None:
        return _format_values(entry.after)
    return f"{_format_values(entry.before)} -> {_format_values(entry.after)}"


def _format_values(values: dict[str, Any] | None) -> str:
    return "" if values is None else ", ".join(f"{key}={json.dumps(value)}" for key, value in values.items())

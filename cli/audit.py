"""`nodesmith audit`: who changed what, and why."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape

from cli.client import ApiClient, read
from cli.grouped import Link, grouped
from cli.render import Column, local_time, show_list
from cli.tokens import seconds
from contracts.access import AuditEntry, AuditPage
from domain.change import Known

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
    actor: Annotated[str | None, typer.Option(help="Only what this token did.", show_default=False)] = None,
    target: Annotated[
        str | None, typer.Option(help="Only what was done to this node, operation or token.", show_default=False)
    ] = None,
    action: Annotated[str | None, typer.Option(help="Only this: nodes.approve, ...", show_default=False)] = None,
    since: Annotated[str | None, typer.Option(help="Only the last 15m, 12h, 7d.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    link: Link,
) -> None:
    """Show who changed what, when and why, the newest first. Kept for 400 days."""
    began = (datetime.now(UTC) - timedelta(seconds=seconds(since) or 0)).isoformat() if since else None
    filters = {"actor": actor, "target": target, "action": action, "since": began}
    with link.api() as api:
        entries = _collect(api, filters, limit)
    show_list(entries, COLUMNS, as_json=link.as_json, nothing="Nothing was changed.")


def _collect(api: ApiClient, filters: dict[str, str | None], limit: int) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    cursor: int | None = None
    while len(entries) < limit:
        size = min(limit - len(entries), _PAGE)
        page = read(AuditPage, api.get("/api/audit", **filters, limit=size, before_id=cursor))
        entries += page.entries
        cursor = page.next
        if cursor is None:
            break
    return entries


def change(entry: AuditEntry) -> str:
    """From what to what, on one line."""
    if entry.outcome is Known.UNKNOWN:
        return f"not known how it went; asked for: {_short(entry.after) or 'this'}"
    if entry.before is None:
        return _short(entry.after)
    return f"{_short(entry.before)} -> {_short(entry.after)}"


def _short(facts: dict[str, Any] | None) -> str:
    return "" if facts is None else ", ".join(f"{key}={json.dumps(value)}" for key, value in facts.items())

"""`nodesmith nodes invite`: one line for another machine."""

from typing import Annotated

import typer
from rich.markup import escape

from cli.client import read, segment
from cli.failures import CommandFailed
from cli.grouped import Link, grouped
from cli.options import Reason
from cli.render import Column, local_time, print_json, show_list
from cli.tokens import seconds
from contracts.access import InviteCreated, InviteRequest, InviteView

COLUMNS: list[Column[InviteView]] = [
    Column("ID", lambda invite: invite.id),
    Column("USED", lambda invite: f"{invite.used} of {invite.uses}", right=True),
    Column("APPROVES", lambda invite: "yes" if invite.approve else "no"),
    Column("ENDS", lambda invite: "revoked" if invite.revoked_at else local_time(invite.expires_at)),
    Column("LABELS", lambda invite: escape(written(invite.labels)), from_width=100, may_wrap=True),
    Column("MADE BY", lambda invite: escape(invite.created_by), from_width=100),
]


def register(nodes: typer.Typer) -> None:
    nodes.command("invite")(grouped(invite))
    nodes.command("invites")(grouped(invites))
    nodes.command("uninvite")(grouped(uninvite))


def invite(
    *,
    approve: Annotated[bool, typer.Option("--approve", help="Who joins with it needs no further approval.")] = False,
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is good: 15m, 1h, 7d.")] = "1h",
    uses: Annotated[int, typer.Option("--uses", min=1, help="How many nodes may join with it.")] = 1,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="A label for them; repeatable.")
    ] = None,
    reason: Reason = None,
    link: Link,
) -> None:
    """Print the one command that lets another machine join. It holds a secret: it is shown this once."""
    request = InviteRequest.model_construct(
        approve=approve, ttl_s=seconds(ttl) or 0, uses=uses, labels=dict(map(_pair, label or []))
    )
    with link.api() as api:
        made = read(InviteCreated, api.post("/api/invites", request, reason=reason))
    if link.as_json:
        return print_json(made)
    what = "is approved at once" if approve else "waits for `nodesmith nodes approve`"
    typer.echo(f"Run this on the other machine, before {local_time(made.expires_at)}.", err=True)
    typer.echo(f"It is good for {uses} node{'s' if uses > 1 else ''}; one that joins {what}:\n", err=True)
    typer.echo(made.command)
    if made.url.startswith("http:"):
        typer.echo("Only this machine reaches that address: start with `nodesmith up --listen ADDR`.", err=True)
    return None


def invites(*, link: Link) -> None:
    """List the invites, the newest first."""
    with link.api() as api:
        found = [read(InviteView, entry) for entry in api.get("/api/invites")]
    show_list(found, COLUMNS, as_json=link.as_json, nothing="Nobody is invited. `nodesmith nodes invite`")


def uninvite(
    invite_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the invite.", show_default=False)],
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Take an invite back; who has joined with it stays."""
    with link.api() as api:
        revoked = read(InviteView, api.delete(f"/api/invites/{segment(invite_id)}", reason=reason))
    if link.as_json:
        return print_json(revoked)
    return typer.echo(f"Invite {revoked.id} is revoked; {revoked.used} joined with it.")


def written(labels: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _pair(label: str) -> tuple[str, str]:
    key, separator, value = label.partition("=")
    if not separator or not key:
        raise CommandFailed(f"{label!r} is no label.", "Write --label key=value.", code="usage")
    return key, value

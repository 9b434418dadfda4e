"""`nodesmith nodes invite|invites|uninvite`: creates, lists and revokes the commands that let machines join."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.commands.tokens import seconds
from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import Column, local_time, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.access import InviteRequest, InviteView

COLUMNS: list[Column[InviteView]] = [
    Column("ID", lambda invite: invite.id),
    Column("USED", lambda invite: f"{invite.used} of {invite.uses}", right=True),
    Column("APPROVES", lambda invite: "yes" if invite.approve else "no"),
    Column("ENDS", lambda invite: "revoked" if invite.revoked_at else local_time(invite.expires_at)),
    Column("LABELS", lambda invite: escape(format_labels(invite.labels)), from_width=100, may_wrap=True),
    Column("CREATED BY", lambda invite: escape(invite.created_by), from_width=100),
]


def register(nodes: typer.Typer) -> None:
    nodes.command("invite")(grouped(invite))
    nodes.command("invites")(grouped(invites))
    nodes.command("uninvite")(grouped(uninvite))


def invite(
    *,
    approve: Annotated[bool, typer.Option("--approve", help="Approve nodes that join with it automatically.")] = False,
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is valid: 15m, 1h, 7d.")] = "1h",
    uses: Annotated[int, typer.Option("--uses", min=1, help="How many nodes may join with it.")] = 1,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="K=V", help="Label of these nodes; may be repeated.")
    ] = None,
    reason: Reason = "",
    link: Link,
) -> None:
    """Print the command that lets another machine join. It contains a secret and is shown only once."""
    request = InviteRequest.model_construct(
        approve=approve, ttl_s=seconds(ttl) or 0, uses=uses, labels=dict(map(_parse_label, label or []))
    )
    with link.api() as api:
        made = api.invites.create(request, reason=reason)
    if link.as_json:
        return print_json(made)
    what = "is approved at once" if approve else "waits for `nodesmith nodes approve`"
    print_line(f"Run this on the other machine, before {local_time(made.expires_at)}.", err=True)
    print_line(f"It is valid for {uses} node{'s' if uses > 1 else ''}; a node that joins {what}:\n", err=True)
    print_line(made.command)
    if made.url.startswith("http:"):
        print_line("Only this machine can reach that address: start with `nodesmith up --listen ADDR`.", err=True)
    return None


def invites(*, link: Link) -> None:
    """List the invites, newest first."""
    with link.api() as api:
        found = api.invites.list().items
    show_list(
        found,
        COLUMNS,
        as_json=link.as_json,
        empty_message="There are no invites. Create one with `nodesmith nodes invite`.",
    )


def uninvite(
    invite_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the invite.", show_default=False)],
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Revoke an invite; nodes that joined with it stay."""
    with link.api() as api:
        revoked = api.invites.delete(invite_id, reason=reason)
    if link.as_json:
        return print_json(revoked)
    return print_line(f"Invite {revoked.id} is revoked; {revoked.used} joined with it.")


def format_labels(labels: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _parse_label(label: str) -> tuple[str, str]:
    key, separator, value = label.partition("=")
    if not separator or not key:
        raise CommandFailed(f"{label!r} is not a label.", "Write --label key=value.", code="usage")
    return key, value

"""`nodesmith tokens`: creates, lists and revokes API tokens with a role."""

from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from nodesmith.cli.errors import CommandFailed
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import Column, ago, local_time, print_json, show_list
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.durations import Duration
from nodesmith.contracts.http.access import TokenRequest, TokenView
from nodesmith.domain.access import Role

NEVER = "never"
_NONE_YET = "There is only the home's admin token. Create one with `nodesmith tokens create NAME --role ROLE`."

COLUMNS: list[Column[TokenView]] = [
    Column("NAME", lambda token: escape(token.name), may_wrap=True),
    Column("ROLE", lambda token: token.role),
    Column("ENDS", lambda token: local_time(token.revoked_at or token.expires_at) or NEVER),
    Column("STATE", lambda token: "revoked" if token.revoked_at else "active"),
    Column("USED", lambda token: ago(token.last_used_at)),
    Column("CREATED BY", lambda token: escape(token.created_by), from_width=100),
    Column("ID", lambda token: token.id, from_width=140),
]


def register(app: typer.Typer) -> None:
    tokens = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    tokens.command("create")(grouped(create))
    tokens.command("ls")(grouped(list_tokens))
    tokens.command("revoke")(grouped(revoke))
    app.add_typer(tokens, name="tokens", help="Create, list and revoke tokens with a role.")


def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of its user, shown as the actor.", show_default=False)
    ],
    *,
    role: Annotated[
        Role,
        typer.Option("--role", help="client: call models; viewer: read; operator: run operations; admin: everything."),
    ],
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is valid: 12h, 90d, or never.")] = "90d",
    reason: Reason = "",
    link: Link,
) -> None:
    """Create a token and print its secret, which is shown only once: the API stores only its hash."""
    request = TokenRequest.model_construct(name=name, role=role, expires_in_s=seconds(ttl))
    with link.api() as api:
        made = api.tokens.create(request, reason=reason)
    if link.as_json:
        return print_json(made)
    ends = f"until {local_time(made.expires_at)}" if made.expires_at else "until it is revoked"
    print_line(f"{made.name} is {made.role}, {ends}. The secret is shown only once:", err=True)
    return print_line(made.token)


def list_tokens(*, link: Link) -> None:
    """List the tokens, valid ones first."""
    with link.api() as api:
        tokens = api.tokens.list().items
    show_list(tokens, COLUMNS, as_json=link.as_json, empty_message=_NONE_YET)


def revoke(
    name: Annotated[str, typer.Argument(metavar="TOKEN", help="Name or id of the token.", show_default=False)],
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Revoke a token: it becomes invalid, and so do the browser sessions that it created."""
    with link.api() as api:
        revoked = api.tokens.delete(name, reason=reason)
    if link.as_json:
        return print_json(revoked)
    return print_line(f"{revoked.name} ({revoked.role}) is revoked.")


def seconds(text: str) -> float | None:
    """Parse a duration such as 12h or 90d; None for `never`."""
    if text == NEVER:
        return None
    try:
        return float(TypeAdapter(Duration).validate_python(text).total_seconds())
    except ValidationError as error:
        raise CommandFailed(f"{text!r} is not a duration.", "Write 90s, 15m, 12h or 90d.", code="usage") from error

"""`nodesmith tokens`: who may read, operate or administer."""

from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from cli.client import read, segment
from cli.failures import CommandFailed
from cli.grouped import Link, grouped
from cli.options import Reason
from cli.render import Column, ago, local_time, print_json, show_list
from contracts.access import TokenCreated, TokenRequest, TokenView
from contracts.durations import Duration
from domain.access import Role

NEVER = "never"
_NONE_YET = "There is only the admin token of the home. `nodesmith tokens create NAME --role ROLE`"

COLUMNS: list[Column[TokenView]] = [
    Column("NAME", lambda token: escape(token.name), may_wrap=True),
    Column("ROLE", lambda token: token.role),
    Column("ENDS", lambda token: local_time(token.revoked_at or token.expires_at) or NEVER),
    Column("STATE", lambda token: "revoked" if token.revoked_at else "in force"),
    Column("USED", lambda token: ago(token.last_used_at)),
    Column("MADE BY", lambda token: escape(token.created_by), from_width=100),
    Column("ID", lambda token: token.id, from_width=140),
]


def register(app: typer.Typer) -> None:
    tokens = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    tokens.command("create")(grouped(create))
    tokens.command("ls")(grouped(list_tokens))
    tokens.command("revoke")(grouped(revoke))
    app.add_typer(tokens, name="tokens", help="Make, list and revoke tokens with a role.")


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is for: appears as actor.", show_default=False)],
    *,
    role: Annotated[Role, typer.Option("--role", help="viewer reads, operator runs operations, admin decides.")],
    ttl: Annotated[str, typer.Option("--ttl", help="How long it is good: 12h, 90d, or never.")] = "90d",
    reason: Reason = None,
    link: Link,
) -> None:
    """Make a token and print its secret: it is shown this once, only its hash is kept."""
    request = TokenRequest.model_construct(name=name, role=role, expires_in_s=seconds(ttl))
    with link.api() as api:
        made = read(TokenCreated, api.post("/api/tokens", request, reason=reason))
    if link.as_json:
        return print_json(made)
    ends = f"until {local_time(made.expires_at)}" if made.expires_at else "until it is revoked"
    typer.echo(f"{made.name} is {made.role}, {ends}. This is shown once:", err=True)
    return typer.echo(made.token)


def list_tokens(*, link: Link) -> None:
    """List the tokens, those in force first."""
    with link.api() as api:
        tokens = [read(TokenView, entry) for entry in api.get("/api/tokens")]
    show_list(tokens, COLUMNS, as_json=link.as_json, nothing=_NONE_YET)


def revoke(
    name: Annotated[str, typer.Argument(metavar="TOKEN", help="Name or id of the token.", show_default=False)],
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Revoke a token: it opens nothing any more, nor do the browsers it signed in."""
    with link.api() as api:
        revoked = read(TokenView, api.delete(f"/api/tokens/{segment(name)}", reason=reason))
    if link.as_json:
        return print_json(revoked)
    return typer.echo(f"{revoked.name} ({revoked.role}) is revoked.")


def seconds(written: str) -> float | None:
    """12h, 90d, or never."""
    if written == NEVER:
        return None
    try:
        return float(TypeAdapter(Duration).validate_python(written).total_seconds())
    except ValidationError as error:
        raise CommandFailed(f"{written!r} is no duration.", "Write 90s, 15m, 12h or 90d.", code="usage") from error

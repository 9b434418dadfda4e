"""`nodesmith hold` and `nodesmith release`: keep work off the nodes, and let it go again."""

from typing import Annotated

import typer

from cli.client import read
from cli.connection import connect
from cli.options import Home, Json, Reason, Token, Url
from cli.render import local_time, print_json
from contracts.http import Because
from contracts.operation_http import HoldBody, HoldView


def register(app: typer.Typer) -> None:
    app.command("hold")(hold)
    app.command("release")(release)


def hold(
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; everybody who waits is told.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Hold back everything that is not on a node yet; without --reason, say whether something is held.

    What runs on a node goes on. The hold is in force on every replica and survives restarts, until `nodesmith release`.
    """
    with connect(url, token, home) as api:
        body = HoldBody.model_construct(reason=reason or "")
        answer = api.get("/api/hold") if reason is None else api.post("/api/hold", body)
    _tell(read(HoldView, answer), as_json=as_json)


def release(
    *, reason: Reason = None, url: Url = None, token: Token = None, home: Home = None, as_json: Json = False
) -> None:
    """Let go what was held back."""
    with connect(url, token, home) as api:
        answer = api.post("/api/release", Because(reason=reason or ""))
    _tell(read(HoldView, answer), as_json=as_json)


def _tell(standing: HoldView, *, as_json: bool) -> None:
    print_json(standing) if as_json else typer.echo(sentence(standing))


def sentence(standing: HoldView) -> str:
    if not standing.held:
        return "Nothing is held."
    since = local_time(standing.since)
    return f"Held since {since} by {standing.by}: {standing.reason}\n  let it go:  nodesmith release"

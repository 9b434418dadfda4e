"""`nodesmith hold` and `nodesmith release`: keep work off the nodes, and let it go again."""

from typing import Annotated

import typer

from cli.client import read
from cli.grouped import Link, grouped
from cli.options import Reason
from cli.render import hold_sentence, print_json
from contracts.http import Because
from contracts.operation_http import HoldBody, HoldView


def register(app: typer.Typer) -> None:
    app.command("hold")(grouped(hold))
    app.command("release")(grouped(release))


def hold(
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; everybody who waits is told.", show_default=False)
    ] = None,
    link: Link,
) -> None:
    """Hold back everything that is not on a node yet; without --reason, say whether something is held.

    What runs on a node goes on. The hold is in force on every replica and survives restarts, until `nodesmith release`.
    """
    with link.api() as api:
        body = HoldBody.model_construct(reason=reason or "")
        answer = api.get("/api/hold") if reason is None else api.post("/api/hold", body)
    _tell(read(HoldView, answer), as_json=link.as_json)


def release(*, reason: Reason = None, link: Link) -> None:
    """Let go what was held back."""
    with link.api() as api:
        answer = api.post("/api/release", Because(reason=reason or ""))
    _tell(read(HoldView, answer), as_json=link.as_json)


def _tell(standing: HoldView, *, as_json: bool) -> None:
    print_json(standing) if as_json else typer.echo(sentence(standing))


def sentence(standing: HoldView) -> str:
    if not standing.held:
        return "Nothing is held."
    return hold_sentence(standing.by, standing.reason, standing.since)

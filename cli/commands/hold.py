"""`nodesmith hold` and `nodesmith release`: stop and resume the dispatch of operations to all nodes."""

from typing import Annotated

import typer

from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import hold_sentence, print_json
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.hold import HoldView


def register(app: typer.Typer) -> None:
    app.command("hold")(grouped(hold))
    app.command("release")(grouped(release))


def hold(
    *,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Shown with every operation that is held.", show_default=False)
    ] = None,
    link: Link,
) -> None:
    """Hold all operations that have not reached a node; without --reason, show whether a hold is set.

    Operations that run on a node continue. The hold applies to every replica and survives restarts.
    """
    with link.api() as api:
        view = api.hold.get() if reason is None else api.hold.set(reason)
    _print_result(view, as_json=link.as_json)


def release(*, reason: Reason = "", link: Link) -> None:
    """Release the hold: dispatch the held operations."""
    with link.api() as api:
        view = api.hold.release(reason=reason)
    _print_result(view, as_json=link.as_json)


def _print_result(view: HoldView, *, as_json: bool) -> None:
    print_json(view) if as_json else print_line(sentence(view))


def sentence(view: HoldView) -> str:
    if not view.held:
        return "No hold is set."
    return hold_sentence(view.by, view.reason, view.since)

"""`nodesmith nodes max-replicas|vram-budget`: overrides the values that a node reports."""

from typing import Annotated

import typer

from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import NodeName, Reason
from nodesmith.cli.output.render import print_json
from nodesmith.cli.output.terminal import print_line

HandBack = Annotated[bool, typer.Option("--hand-back", help="Remove the override: use the node's value again.")]


def register(nodes: typer.Typer) -> None:
    nodes.command("max-replicas")(grouped(max_replicas))
    nodes.command("vram-budget")(grouped(vram_budget))


def max_replicas(
    node: NodeName,
    value: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="At least 1; omit to show it.", show_default=False)
    ] = None,
    *,
    hand_back: HandBack = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Override how many replicas of one model a node may run, or remove the override."""
    _check_exclusive(has_value=value is not None, hand_back=hand_back)
    with link.api() as api:
        if value is not None:
            view = api.nodes.set_max_replicas(node, value, reason=reason)
        else:
            view = api.nodes.reset_max_replicas(node, reason=reason) if hand_back else api.nodes.get(node)
    if link.as_json:
        fields = {"max_replicas_per_model", "max_replicas_per_model_manually_set"}
        return print_json(view.model_dump(mode="json", include=fields))
    origin = _origin(is_override=view.max_replicas_per_model_manually_set)
    return print_line(f"{node}: {view.max_replicas_per_model} per model, {origin}.")


def vram_budget(
    node: NodeName,
    value: Annotated[
        str | None,
        typer.Argument(metavar="[BUDGET]", help="80%, 12GB, or '' for no limit; omit to show it.", show_default=False),
    ] = None,
    *,
    hand_back: HandBack = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Override how much video memory a node may use, or remove the override."""
    _check_exclusive(has_value=value is not None, hand_back=hand_back)
    with link.api() as api:
        if value is not None:
            view = api.nodes.set_vram_budget(node, value, reason=reason)
        else:
            view = api.nodes.reset_vram_budget(node, reason=reason) if hand_back else api.nodes.get(node)
    if link.as_json:
        fields = {"vram_budget", "vram_budget_bytes", "vram_budget_manually_set"}
        return print_json(view.model_dump(mode="json", include=fields))
    return print_line(
        f"{node}: {view.vram_budget or 'no budget'}, {_origin(is_override=view.vram_budget_manually_set)}."
    )


def _check_exclusive(*, has_value: bool, hand_back: bool) -> None:
    if has_value and hand_back:
        raise typer.BadParameter("Give a value or --hand-back, not both.")


def _origin(*, is_override: bool) -> str:
    return "set by an admin" if is_override else "as the node reports"

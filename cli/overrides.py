"""`nodesmith nodes max-replicas|vram-budget`: what an admin decides over a node's own word, until it is handed back."""

from typing import Annotated

import typer
from pydantic import BaseModel

from cli.client import read, segment
from cli.grouped import Link, grouped
from cli.options import NodeName, Reason
from cli.render import print_json
from contracts.inventory import MaxReplicas, VramBudget
from contracts.node_http import NodeView

HandBack = Annotated[bool, typer.Option("--hand-back", help="Let the node's own word count again.")]


def register(nodes: typer.Typer) -> None:
    nodes.command("max-replicas")(grouped(max_replicas))
    nodes.command("vram-budget")(grouped(vram_budget))


def max_replicas(
    node: NodeName,
    value: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="At least 1; none: show it.", show_default=False)
    ] = None,
    *,
    hand_back: HandBack = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Set how many replicas of one model a node may run, over its own word; or hand that back."""
    body = None if value is None else MaxReplicas.model_construct(value=value)
    view = _decided(link, node, "max-replicas-per-model", body, hand_back=hand_back, reason=reason)
    if link.as_json:
        fields = {"max_replicas_per_model", "max_replicas_per_model_manually_set"}
        return print_json(view.model_dump(mode="json", include=fields))
    decided = _by(is_admins=view.max_replicas_per_model_manually_set)
    return typer.echo(f"{node}: {view.max_replicas_per_model} a model, {decided}.")


def vram_budget(
    node: NodeName,
    value: Annotated[
        str | None,
        typer.Argument(metavar="[BUDGET]", help="80%, 12GB, or '' for none; absent: show it.", show_default=False),
    ] = None,
    *,
    hand_back: HandBack = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Set how much of its video memory a node may use, over its own word; or hand that back."""
    body = None if value is None else VramBudget.model_construct(value=value)
    view = _decided(link, node, "vram-budget", body, hand_back=hand_back, reason=reason)
    if link.as_json:
        fields = {"vram_budget", "vram_budget_bytes", "vram_budget_manually_set"}
        return print_json(view.model_dump(mode="json", include=fields))
    return typer.echo(f"{node}: {view.vram_budget or 'no budget'}, {_by(is_admins=view.vram_budget_manually_set)}.")


def _decided(
    link: Link, node: str, what: str, body: BaseModel | None, *, hand_back: bool, reason: str | None
) -> NodeView:
    if body is not None and hand_back:
        raise typer.BadParameter("Give a value or --hand-back, not both.")
    path = f"/api/nodes/{segment(node)}"
    with link.api() as api:
        if body is not None:
            api.put(f"{path}/{what}", body, reason=reason)
        elif hand_back:
            api.delete(f"{path}/{what}", reason=reason)
        return read(NodeView, api.get(path))


def _by(*, is_admins: bool) -> str:
    return "set by an admin" if is_admins else "as the node says"

"""`nodesmith nodes drain|resume|rm|reset-credential`: changes the lifecycle of a node."""

from typing import Annotated

import typer

from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import NodeName, Reason
from nodesmith.cli.output.render import print_json
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.nodes import LifecycleChanged
from nodesmith.contracts.http.replicas import DrainPreview
from nodesmith.domain.node import DrainPolicy

CancelRunning = Annotated[
    bool, typer.Option("--cancel-running", help="Also cancel running operations instead of letting them finish.")
]


def register(nodes: typer.Typer) -> None:
    nodes.command("drain")(grouped(drain))
    nodes.command("resume")(grouped(resume))
    nodes.command("rm")(grouped(remove))
    nodes.command("reset-credential")(grouped(reset_credential))


def drain(
    node: NodeName,
    *,
    cancel_running: CancelRunning = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which models would move where; drain nothing.")
    ] = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Drain a node: it gets no new operations, and those not started are cancelled, until `nodes resume`.

    Its models are loaded on other nodes first; one that no other node can take serves on.
    """
    with link.api() as api:
        if dry_run:
            return _print_preview(node, api.deployments.drain_preview(node), as_json=link.as_json)
        running = DrainPolicy.CANCEL if cancel_running else DrainPolicy.FINISH
        changed = api.nodes.drain(node, running=running, reason=reason)
    return _print_result(
        node, changed, "is drained: it gets no new operations until `nodesmith nodes resume`", as_json=link.as_json
    )


def _print_preview(node: str, preview: DrainPreview, *, as_json: bool) -> None:
    if as_json:
        return print_json(preview)
    if not preview.moves:
        print_line(f"No model would have to leave {node}.")
    for move in preview.moves:
        where = f"moves to {move.to}" if move.to else f"serves on, because no other node can take it: {move.detail}"
        print_line(f"{move.model}#{move.index} {where}.")
    return None


def resume(
    node: NodeName,
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Resume a drained node."""
    with link.api() as api:
        changed = api.nodes.resume(node, reason=reason)
    _print_result(node, changed, "accepts operations again", as_json=link.as_json)


def remove(
    node: NodeName,
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Remove a node: its operations end and its agent stops. Its history and its files on disk stay."""
    with link.api() as api:
        changed = api.nodes.delete(node, reason=reason)
    _print_result(node, changed, "is removed", as_json=link.as_json)


def reset_credential(
    node: NodeName,
    *,
    reason: Reason = "",
    link: Link,
) -> None:
    """Release the name of a node for another machine, which then needs an approval."""
    with link.api() as api:
        changed = api.nodes.reset_credential(node, reason=reason)
    _print_result(node, changed, "can be registered by another machine now", as_json=link.as_json)


def _print_result(node: str, changed: LifecycleChanged, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(changed)
        return
    status = f" Its status is {changed.status}." if changed.status else ""
    print_line(f"{node} {sentence}.{status}")
    for op_id in changed.cancelled:
        print_line(f"cancelling operation {op_id}: nodesmith ops show {op_id}")

"""`nodesmith nodes drain|resume|rm|reset-credential`: the life of a node, as people decide it."""

from typing import Annotated

import typer

from cli.client import read, segment
from cli.grouped import Link, grouped
from cli.options import NodeName, Reason
from cli.render import print_json
from contracts.http import Because
from contracts.node_http import LifeChanged, Running

CancelRunning = Annotated[
    bool, typer.Option("--cancel-running", help="Cancel what runs on the node too, instead of letting it finish.")
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
    reason: Reason = None,
    link: Link,
) -> None:
    """Give a node no new work; what has not begun there is cancelled. Holds until somebody resumes it."""
    with link.api() as api:
        operations = Running.CANCEL if cancel_running else None
        answer = api.post(f"/api/nodes/{segment(node)}/drain", Because(reason=reason or ""), operations=operations)
    _tell(node, answer, "is drained: no new work until `nodesmith nodes resume`", as_json=link.as_json)


def resume(
    node: NodeName,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Take a drain back."""
    with link.api() as api:
        answer = api.post(f"/api/nodes/{segment(node)}/resume", Because(reason=reason or ""))
    _tell(node, answer, "takes work again", as_json=link.as_json)


def remove(
    node: NodeName,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Remove a node: its operations end, its agent is told and stops, history stays. Its disk is not touched."""
    with link.api() as api:
        answer = api.delete(f"/api/nodes/{segment(node)}", reason=reason)
    _tell(node, answer, "is removed", as_json=link.as_json)


def reset_credential(
    node: NodeName,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Give the name of a node free for another machine, which then waits for approval."""
    with link.api() as api:
        answer = api.post(f"/api/nodes/{segment(node)}/reset-credential", Because(reason=reason or ""))
    _tell(node, answer, "is free for the next machine that registers under that name", as_json=link.as_json)


def _tell(node: str, answer: object, sentence: str, *, as_json: bool) -> None:
    changed = read(LifeChanged, answer)
    if as_json:
        print_json(changed)
        return
    status = f" Its status is {changed.status}." if changed.status else ""
    typer.echo(f"{node} {sentence}.{status}")
    for op_id in changed.cancelled:
        typer.echo(f"cancelling operation {op_id}: nodesmith ops show {op_id}")

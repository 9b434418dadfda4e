"""`nodesmith nodes drain|resume|rm|reset-credential`: changes the lifecycle of a node."""

from typing import Annotated

import typer

from nodesmith.cli.client import read, segment
from nodesmith.cli.option_groups import Link, grouped
from nodesmith.cli.options import NodeName, Reason
from nodesmith.cli.output.render import print_json
from nodesmith.cli.output.terminal import print_line
from nodesmith.contracts.http.nodes import DrainPolicy, LifecycleChanged
from nodesmith.contracts.http.shared import ReasonBody

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
    reason: Reason = None,
    link: Link,
) -> None:
    """Drain a node: it gets no new operations, and those not started are cancelled, until `nodes resume`."""
    with link.api() as api:
        operations = DrainPolicy.CANCEL if cancel_running else None
        answer = api.post(f"/api/nodes/{segment(node)}/drain", ReasonBody(reason=reason or ""), operations=operations)
    _print_result(
        node, answer, "is drained: it gets no new operations until `nodesmith nodes resume`", as_json=link.as_json
    )


def resume(
    node: NodeName,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Resume a drained node."""
    with link.api() as api:
        answer = api.post(f"/api/nodes/{segment(node)}/resume", ReasonBody(reason=reason or ""))
    _print_result(node, answer, "accepts operations again", as_json=link.as_json)


def remove(
    node: NodeName,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Remove a node: its operations end and its agent stops. Its history and its files on disk stay."""
    with link.api() as api:
        answer = api.delete(f"/api/nodes/{segment(node)}", reason=reason)
    _print_result(node, answer, "is removed", as_json=link.as_json)


def reset_credential(
    node: NodeName,
    *,
    reason: Reason = None,
    link: Link,
) -> None:
    """Release the name of a node for another machine, which then needs an approval."""
    with link.api() as api:
        answer = api.post(f"/api/nodes/{segment(node)}/reset-credential", ReasonBody(reason=reason or ""))
    _print_result(node, answer, "can be registered by another machine now", as_json=link.as_json)


def _print_result(node: str, answer: object, sentence: str, *, as_json: bool) -> None:
    changed = read(LifecycleChanged, answer)
    if as_json:
        print_json(changed)
        return
    status = f" Its status is {changed.status}." if changed.status else ""
    print_line(f"{node} {sentence}.{status}")
    for op_id in changed.cancelled:
        print_line(f"cancelling operation {op_id}: nodesmith ops show {op_id}")

"""`nodesmith ops cancel|retry|dismiss`: one operation by its id, or many by filter, after a look at them."""

from typing import Annotated

import typer
from rich.markup import escape

from cli.backend_changes import announcement
from cli.client import ApiClient, read, segment
from cli.failures import NOT_DONE
from cli.grouped import Link, grouped
from cli.options import Reason
from cli.render import Column, make_console, print_json, print_json_line, table, word
from cli.render import show as display
from cli.watch import watch
from contracts.messages import CancelMode
from contracts.operation_http import (
    BulkBody,
    BulkItem,
    BulkResult,
    CancelAccepted,
    CancelBody,
    Dismissed,
    JobAccepted,
    RetryBody,
)
from domain.operation import State

OneId = Annotated[str, typer.Argument(metavar="ID", help="Id of the operation.", show_default=False)]
MaybeId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="Id of the operation; or give a filter.", show_default=False)
]
OfNode = Annotated[str | None, typer.Option("--node", help="All of this node.", show_default=False)]
OfBackend = Annotated[str | None, typer.Option("--backend", help="All of this backend.", show_default=False)]
InState = Annotated[str | None, typer.Option("--state", help="All in this state.", show_default=False)]
OfBatch = Annotated[str | None, typer.Option("--batch", help="All of this batch.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without, those that match are only shown.")]

COLUMNS: list[Column[BulkItem]] = [
    Column("ID", lambda item: item.op_id),
    Column("NODE", lambda item: escape(item.node_name)),
    Column("WHAT", lambda item: escape(f"{item.kind} {item.backend}")),
    Column("STATE", lambda item: word(item.state)),
    Column("", lambda item: {True: "done", False: "[red]refused[/]", None: ""}[item.accepted]),
    Column("NOTE", lambda item: escape(item.note), may_wrap=True),
]


def register(operations: typer.Typer) -> None:
    for name, command in (("cancel", cancel), ("retry", retry), ("dismiss", dismiss)):
        operations.command(name)(grouped(command))


def cancel(
    op_id: MaybeId = None,
    *,
    node: OfNode = None,
    backend: OfBackend = None,
    state: InState = None,
    batch: OfBatch = None,
    yes: Yes = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep what was downloaded for a later try.")] = False,
    force: Annotated[bool, typer.Option("--force", help="End it without the node's word; by id only.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Cancel one operation by its id, or all that match a filter; returns as soon as that is durable.

    A node is told as soon as it can be reached; once it has acknowledged, it never changes anything for it again.
    """
    mode = CancelMode.KEEP if keep else CancelMode.DISCARD
    wanted = _filter(op_id, node=node, backend=backend, state=state, batch=batch)
    with link.api() as api:
        if op_id is not None:
            body = CancelBody.model_construct(reason=reason or "", mode=mode, force=force)
            return _cancel_one(api, op_id, body, as_json=link.as_json)
        order = wanted.model_copy(update={"reason": reason or "", "mode": mode, "preview": not yes})
        result = read(BulkResult, api.post("/api/operations/cancel", order))
    return _tell(result, "cancel", as_json=link.as_json)


def _cancel_one(api: ApiClient, op_id: str, body: CancelBody, *, as_json: bool) -> None:
    accepted = read(CancelAccepted, api.post(f"/api/operations/{segment(op_id)}/cancel", body))
    if as_json:
        return print_json(accepted)
    typer.echo(f"Cancel accepted; operation {op_id} is {accepted.state}.")
    return typer.echo(f"  {accepted.note}" if accepted.note else f"  follow it:  nodesmith ops watch {op_id}")


def retry(
    op_id: OneId,
    *,
    wait: Annotated[bool, typer.Option("--watch", help="Stay until it ends; Ctrl-C leaves it running.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Ask again for an operation that did not succeed: a new one that names the old. Nothing is fetched twice."""
    with link.api() as api:
        body = RetryBody.model_construct(reason=reason or "")
        accepted = read(JobAccepted, api.post_once(f"/api/operations/{segment(op_id)}/retry", body))
        if link.as_json and wait:
            print_json_line({"type": "accepted", **accepted.model_dump(mode="json")})
        elif link.as_json:
            print_json(accepted)
        else:
            typer.echo(announcement(accepted))
        if wait:
            raise typer.Exit(watch(api, accepted.jobID, as_json=link.as_json, patient=True))


def dismiss(
    op_id: MaybeId = None,
    *,
    node: OfNode = None,
    backend: OfBackend = None,
    state: InState = None,
    batch: OfBatch = None,
    yes: Yes = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Take operations that ended badly off the list, one by its id or all that match; history keeps them."""
    wanted = _filter(op_id, node=node, backend=backend, state=state, batch=batch)
    with link.api() as api:
        if op_id is not None:
            return _dismiss_one(api, op_id, as_json=link.as_json)
        order = wanted.model_copy(update={"reason": reason or "", "preview": not yes})
        result = read(BulkResult, api.post("/api/operations/dismiss", order))
    return _tell(result, "dismiss", as_json=link.as_json)


def _dismiss_one(api: ApiClient, op_id: str, *, as_json: bool) -> None:
    answer = read(Dismissed, api.post(f"/api/operations/{segment(op_id)}/dismiss"))
    print_json(answer) if as_json else typer.echo(f"{answer.message}.")
    if not answer.success:
        raise typer.Exit(NOT_DONE)


def _filter(
    op_id: str | None, *, node: str | None, backend: str | None, state: str | None, batch: str | None
) -> BulkBody:
    """An id, or at least one condition; never both."""
    has_filter = any(condition is not None for condition in (node, backend, state, batch))
    if (op_id is not None) == has_filter:
        raise typer.BadParameter("Give an ID, or one of --node, --backend, --state, --batch; not both.")
    known = None if state is None else State(state)
    return BulkBody.model_construct(node=node, backend=backend, state=known, batch=batch)


def _tell(result: BulkResult, verb: str, *, as_json: bool) -> None:
    """What was done, or would be; anything left undone is an exit code."""
    if as_json:
        print_json(result)
    else:
        _show(result, verb)
    if result.accepted < result.matched:
        raise typer.Exit(NOT_DONE)


def _show(result: BulkResult, verb: str) -> None:
    if not result.matched:
        return typer.echo(f"There is nothing to {verb} that matches.")
    console = make_console()
    display(console, table(result.operations, COLUMNS, console.width))
    if result.preview:
        return typer.echo(f"{result.matched} to {verb}. Nothing was done yet: say --yes.")
    return typer.echo(f"{verb}: {result.accepted} of {result.matched} accepted.")

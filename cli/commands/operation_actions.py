"""`nodesmith ops cancel|retry|dismiss`: changes one operation by id, or many by filter after a preview."""

from typing import Annotated

import typer
from rich.markup import escape

from nodesmith.cli.commands.backend_changes import announcement
from nodesmith.cli.errors import NOT_DONE
from nodesmith.cli.option_groups import Link, given, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import Column, colored, make_console, print_json, print_json_line, table
from nodesmith.cli.output.render import show as display
from nodesmith.cli.output.terminal import print_line
from nodesmith.cli.output.watch import watch
from nodesmith.client import Client
from nodesmith.contracts.http.operation_groups import BulkBody, BulkItem, BulkResult
from nodesmith.contracts.http.operations import CancelBody
from nodesmith.contracts.nats.messages import CancelMode
from nodesmith.domain.operation import State

OneId = Annotated[str, typer.Argument(metavar="ID", help="Id of the operation.", show_default=False)]
MaybeId = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="Id of the operation; omit to use filters.", show_default=False)
]
OfNode = Annotated[str | None, typer.Option("--node", help="All operations of this node.", show_default=False)]
OfBackend = Annotated[str | None, typer.Option("--backend", help="All operations of this backend.", show_default=False)]
InState = Annotated[str | None, typer.Option("--state", help="All operations in this state.", show_default=False)]
OfBatch = Annotated[str | None, typer.Option("--batch", help="All operations of this batch.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Apply; without it, matching operations are only listed.")]

COLUMNS: list[Column[BulkItem]] = [
    Column("ID", lambda item: item.op_id),
    Column("NODE", lambda item: escape(item.node_name)),
    Column("WHAT", lambda item: escape(f"{item.kind} {item.backend}")),
    Column("STATE", lambda item: colored(item.state)),
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
    keep: Annotated[bool, typer.Option("--keep", help="Keep the downloaded data for a later attempt.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="End it without the node's acknowledgement; by id only.")
    ] = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Cancel one operation by id, or all that match a filter; returns as soon as the request is durable.

    The node receives the cancel as soon as it is reachable; after its acknowledgement it changes nothing more.
    """
    mode = CancelMode.KEEP if keep else None
    wanted = _filter(op_id, node=node, backend=backend, state=state, batch=batch, reason=reason, preview=not yes)
    with link.api() as api:
        if op_id is not None:
            order = CancelBody.model_construct(**given(reason=reason, mode=mode, force=force))
            return _cancel_one(api, op_id, order, as_json=link.as_json)
        result = api.operations.cancel_many(wanted.model_copy(update=given(mode=mode)))
    return _print_result(result, "cancel", as_json=link.as_json)


def _cancel_one(api: Client, op_id: str, order: CancelBody, *, as_json: bool) -> None:
    accepted = api.operations.cancel(op_id, order)
    if as_json:
        return print_json(accepted)
    print_line(f"Cancel accepted; operation {op_id} is {accepted.state}.")
    return print_line(f"  {accepted.note}" if accepted.note else f"  follow it:  nodesmith ops watch {op_id}")


def retry(
    op_id: OneId,
    *,
    wait: Annotated[bool, typer.Option("--watch", help="Wait until it ends; Ctrl-C leaves it running.")] = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Retry a failed operation as a new one that refers to it. Downloaded data is reused."""
    with link.api() as api:
        accepted = api.operations.retry(op_id, reason=reason)
        if link.as_json and wait:
            print_json_line({"type": "accepted", **accepted.model_dump(mode="json")})
        elif link.as_json:
            print_json(accepted)
        else:
            print_line(announcement(accepted))
        if wait:
            raise typer.Exit(watch(api, accepted.op_id, as_json=link.as_json, is_known_to_exist=True))


def dismiss(
    op_id: MaybeId = None,
    *,
    node: OfNode = None,
    backend: OfBackend = None,
    state: InState = None,
    batch: OfBatch = None,
    yes: Yes = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Remove failed operations from the list, one by id or all that match; the history keeps them."""
    wanted = _filter(op_id, node=node, backend=backend, state=state, batch=batch, reason=reason, preview=not yes)
    with link.api() as api:
        if op_id is not None:
            dismissed = api.operations.dismiss(op_id, reason=reason)
            return print_json(dismissed) if link.as_json else print_line("Operation dismissed.")
        result = api.operations.dismiss_many(wanted)
    return _print_result(result, "dismiss", as_json=link.as_json)


def _filter(op_id: str | None, *, state: str | None, reason: str, preview: bool, **names: str | None) -> BulkBody:
    """Build the request for many operations; require either an id or at least one condition."""
    conditions = {**names, "state": None if state is None else State(state)}
    if (op_id is not None) == any(value is not None for value in conditions.values()):
        raise typer.BadParameter("Give either an ID, or at least one of --node, --backend, --state and --batch.")
    return BulkBody.model_construct(**given(**conditions, reason=reason, preview=preview))


def _print_result(result: BulkResult, verb: str, *, as_json: bool) -> None:
    """Print the result or the preview; exit with 1 if an operation was not accepted."""
    if as_json:
        print_json(result)
    else:
        _show(result, verb)
    if result.accepted < result.matched:
        raise typer.Exit(NOT_DONE)


def _show(result: BulkResult, verb: str) -> None:
    if not result.matched:
        return print_line(f"No operation to {verb} matches.")
    console = make_console()
    display(console, table(result.operations, COLUMNS, console.width))
    if result.preview:
        return print_line(f"{result.matched} to {verb}. Nothing was changed: add --yes to {verb}.")
    return print_line(f"{verb}: {result.accepted} of {result.matched} accepted.")

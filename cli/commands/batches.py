"""`nodesmith batches`: one change on many nodes."""

from typing import Annotated

import typer
from rich.console import Group
from rich.markup import escape

from nodesmith.cli.option_groups import Link, given, grouped
from nodesmith.cli.options import Reason
from nodesmith.cli.output.render import (
    Column,
    ago,
    colored,
    facts,
    local_time,
    make_console,
    print_json,
    print_json_line,
    show_list,
    size,
    table,
)
from nodesmith.cli.output.render import show as display
from nodesmith.cli.output.terminal import print_line
from nodesmith.cli.output.watch_batch import MEMBERS, watch_batch
from nodesmith.contracts.http.batches import BatchAccepted, BatchDetail, BatchPlan, BatchRetry, BatchView, PlannedMember
from nodesmith.domain.batch import RetrySelect

BatchId = Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.", show_default=False)]

COLUMNS: list[Column[BatchView]] = [
    Column("ID", lambda batch: batch.batch_id),
    Column("WHAT", lambda batch: escape(f"{batch.kind} {batch.backend} {batch.version}".rstrip())),
    Column("STATE", lambda batch: colored(batch.state)),
    Column("NODES", lambda batch: escape(counts(batch)), may_wrap=True),
    Column("AGE", lambda batch: ago(batch.created_at), from_width=110),
    Column("BY", lambda batch: escape(batch.requested_by), from_width=130),
]

PLAN: list[Column[PlannedMember]] = [
    Column("NODE", lambda member: escape(member.node_name)),
    Column("ACTION", lambda member: escape(member.action)),
    Column("NOW", lambda member: escape(member.current_version)),
    Column("FETCH", lambda member: size(member.bytes) if member.bytes else "", right=True),
    Column("FREE DISK", lambda member: size(member.free_disk), right=True),
    Column("FITS", lambda member: "yes" if member.suitable else "[red]no[/]"),
    Column("WHY", lambda member: escape(member.reason), may_wrap=True),
    Column("OUTAGE", lambda member: escape(member.outage), from_width=110),
]


def register(app: typer.Typer) -> None:
    batches = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    for name, command in (("ls", list_batches), ("show", show), ("watch", watch)):
        batches.command(name)(grouped(command))
    for name, command in (("pause", pause), ("resume", resume), ("cancel", cancel), ("retry", retry)):
        batches.command(name)(grouped(command))
    app.add_typer(batches, name="batches", help="List, show and watch batches; pause, resume, cancel, retry.")


def counts(batch: BatchView) -> str:
    return ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in sorted(batch.counts.items()))


def list_batches(
    *,
    open_only: Annotated[bool, typer.Option("--open", help="Only open batches.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many, newest first.")] = 50,
    link: Link,
) -> None:
    """List batches, newest first."""
    with link.api() as api:
        batches = api.batches.list(open_only=open_only, limit=limit).items
    show_list(
        batches,
        COLUMNS,
        as_json=link.as_json,
        empty_message="No batch is open." if open_only else "There are no batches yet.",
    )


def show(batch_id: BatchId, *, link: Link) -> None:
    """Show one batch with all its nodes."""
    with link.api() as api:
        batch = api.batches.get(batch_id)
    if link.as_json:
        return print_json(batch)
    console = make_console()
    return display(console, Group(facts(describe(batch)), "", table(batch.members, MEMBERS, console.width)))


def describe(batch: BatchDetail) -> list[tuple[str, str]]:
    return [
        ("batch", batch.batch_id),
        ("what", escape(f"{batch.kind} {batch.backend} {batch.version}".rstrip())),
        ("state", colored(batch.state)),
        ("", escape(batch.detail)),
        ("nodes", escape(counts(batch))),
        ("at a time", str(batch.max_parallel or "all")),
        ("stops after", _limit(batch)),
        ("attempts", f"at most {batch.max_attempts} a node" if batch.max_attempts else ""),
        *_failure_causes(batch),
        ("retry of", batch.retry_of or ""),
        ("requested by", escape(batch.requested_by)),
        ("reason", escape(batch.note)),
        ("requested", local_time(batch.created_at)),
        ("ended", local_time(batch.ended_at)),
        ("run", escape(batch.temporal_url)),
    ]


def _limit(batch: BatchView) -> str:
    if not batch.max_failures:
        return ""
    return f"{batch.max_failures} {'failed attempts' if batch.count_attempts else 'failures'}"


def _failure_causes(batch: BatchView) -> list[tuple[str, str]]:
    """Describe how many attempts failed, and the most frequent causes."""
    if not batch.failed_attempts:
        return []
    causes = [("", escape(f"{each.attempts} x {each.cause} (nodes: {each.nodes})")) for each in batch.troubles]
    return [("failed", f"{batch.failed_attempts} attempts on {batch.failed_nodes} nodes"), *causes]


def watch(batch_id: BatchId, *, link: Link) -> None:
    """Watch one batch until it ends.

    Exit code: 0 if it succeeded on every node, 1 if it did not, 130 after Ctrl-C (the batch continues).
    """
    with link.api() as api:
        raise typer.Exit(watch_batch(api, batch_id, as_json=link.as_json))


def pause(batch_id: BatchId, *, reason: Reason = "", link: Link) -> None:
    """Pause a batch: it starts no more operations; running ones continue."""
    with link.api() as api:
        batch = api.batches.pause(batch_id, reason=reason)
    _print_result(batch, f"Batch {batch_id} is paused; running operations continue.", as_json=link.as_json)


def resume(batch_id: BatchId, *, reason: Reason = "", link: Link) -> None:
    """Resume a paused batch."""
    with link.api() as api:
        batch = api.batches.resume(batch_id, reason=reason)
    _print_result(batch, f"Batch {batch_id} is resumed.", as_json=link.as_json)


def cancel(batch_id: BatchId, *, reason: Reason = "", link: Link) -> None:
    """Cancel a batch and the operations that it started; those that it only joined continue."""
    with link.api() as api:
        batch = api.batches.cancel(batch_id, reason=reason)
    _print_result(batch, f"Cancel accepted.\n  follow it:  nodesmith batches watch {batch_id}", as_json=link.as_json)


def retry(
    batch_id: BatchId,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Where it failed or was not started.  [default]")] = False,
    cancelled: Annotated[bool, typer.Option("--cancelled", help="Nodes where it was cancelled.")] = False,
    all_unfinished: Annotated[
        bool, typer.Option("--all-unfinished", help="All nodes where it did not succeed.")
    ] = False,
    wait: Annotated[bool, typer.Option("--watch", help="Wait until it ends; Ctrl-C leaves it running.")] = False,
    reason: Reason = "",
    link: Link,
) -> None:
    """Retry as a new batch on nodes where it did not succeed, with the same version, digest and limits.

    Nodes where it succeeded are left out.
    """
    select = _selected(failed=failed, cancelled=cancelled, all_unfinished=all_unfinished)
    with link.api() as api:
        accepted = api.batches.retry(batch_id, BatchRetry.model_construct(**given(reason=reason, select=select)))
        announce(accepted, as_json=link.as_json, is_watched=wait)
        if wait:
            raise typer.Exit(watch_batch(api, accepted.batch_id, as_json=link.as_json, is_known_to_exist=True))


def _selected(**options: bool) -> RetrySelect | None:
    chosen = [RetrySelect(option) for option, is_set in options.items() if is_set]
    if len(chosen) > 1:
        raise typer.BadParameter("Give only one of --failed, --cancelled and --all-unfinished.")
    return chosen[0] if chosen else None


def _print_result(batch: BatchView, sentence: str, *, as_json: bool) -> None:
    print_json(batch) if as_json else print_line(sentence)


def announce(accepted: BatchAccepted, *, as_json: bool, is_watched: bool = False) -> None:
    if as_json and is_watched:
        print_json_line({"type": "accepted", **accepted.model_dump(mode="json")})
    elif as_json:
        print_json(accepted)
    else:
        print_line(announcement(accepted, is_watched=is_watched))


def announcement(accepted: BatchAccepted, *, is_watched: bool) -> str:
    status = "This request was accepted before" if accepted.repeated else "Accepted"
    lines = [f"{status}: batch {accepted.batch_id} on {len(accepted.operations)} nodes"]
    lines += [f"  skipped {name}: {why}" for name, why in sorted(accepted.skipped.items())]
    return "\n".join(lines if is_watched else [*lines, f"  watch it:  nodesmith batches watch {accepted.batch_id}"])


def show_plan(plan: BatchPlan) -> None:
    console = make_console()
    what = f"{plan.backend} {plan.version}".rstrip()
    console.print(escape(f"{what}: {plan.targets} nodes, {plan.skipped} skipped. Nothing was started."))
    display(console, table(plan.members, PLAN, console.width))

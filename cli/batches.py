"""`nodesmith batches`: one intent for many nodes."""

from typing import Annotated

import typer
from rich.console import Group
from rich.markup import escape

from cli.client import ApiClient, read, segment
from cli.grouped import Link, grouped
from cli.options import Reason
from cli.render import (
    Column,
    ago,
    facts,
    local_time,
    make_console,
    print_json,
    print_json_line,
    show_list,
    size,
    table,
    word,
)
from cli.render import show as display
from cli.watch_batch import MEMBERS, fetch_batch, watch_batch
from contracts.batch_http import (
    BatchAccepted,
    BatchDetail,
    BatchPlan,
    BatchRetry,
    BatchView,
    PlannedMember,
    RetrySelect,
)
from contracts.http import Because, Message

BatchId = Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.", show_default=False)]

COLUMNS: list[Column[BatchView]] = [
    Column("ID", lambda batch: batch.batch_id),
    Column("WHAT", lambda batch: escape(f"{batch.kind} {batch.backend} {batch.version}".rstrip())),
    Column("STATE", lambda batch: word(batch.state)),
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
    open_only: Annotated[bool, typer.Option("--open", help="Only those that have not ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, newest first.")] = 50,
    link: Link,
) -> None:
    """List batches, the newest first."""
    with link.api() as api:
        batches = [read(BatchView, entry) for entry in api.get("/api/batches", open=open_only, limit=limit)]
    show_list(
        batches,
        COLUMNS,
        as_json=link.as_json,
        nothing="No batch is open." if open_only else "There are no batches yet.",
    )


def show(batch_id: BatchId, *, link: Link) -> None:
    """Show one batch with every node of it."""
    with link.api() as api:
        batch = fetch_batch(api, batch_id)
    if link.as_json:
        return print_json(batch)
    console = make_console()
    return display(console, Group(facts(describe(batch)), "", table(batch.members, MEMBERS, console.width)))


def describe(batch: BatchDetail) -> list[tuple[str, str]]:
    return [
        ("batch", batch.batch_id),
        ("what", escape(f"{batch.kind} {batch.backend} {batch.version}".rstrip())),
        ("state", word(batch.state)),
        ("", escape(batch.detail)),
        ("nodes", escape(counts(batch))),
        ("at a time", str(batch.max_parallel or "all")),
        ("stops after", _limit(batch)),
        ("attempts", f"at most {batch.max_attempts} a node" if batch.max_attempts else ""),
        *_troubles(batch),
        ("retry of", batch.retry_of or ""),
        ("asked by", escape(batch.requested_by)),
        ("why", escape(batch.note)),
        ("asked", local_time(batch.created_at)),
        ("ended", local_time(batch.ended_at)),
        ("run", escape(batch.temporal_url)),
    ]


def _limit(batch: BatchView) -> str:
    if not batch.max_failures:
        return ""
    return f"{batch.max_failures} {'failed attempts' if batch.count_attempts else 'failures'}"


def _troubles(batch: BatchView) -> list[tuple[str, str]]:
    """How often attempts failed, and the most frequent causes."""
    if not batch.failed_attempts:
        return []
    causes = [("", escape(f"{each.attempts} x {each.cause} (nodes: {each.nodes})")) for each in batch.troubles]
    return [("failed", f"{batch.failed_attempts} attempts on {batch.failed_nodes} nodes"), *causes]


def watch(batch_id: BatchId, *, link: Link) -> None:
    """Watch one batch until it ends.

    Exit code: 0 it succeeded on every node, 1 it did not, 130 after Ctrl-C (the batch goes on).
    """
    with link.api() as api:
        raise typer.Exit(watch_batch(api, batch_id, as_json=link.as_json))


def pause(batch_id: BatchId, *, reason: Reason = None, link: Link) -> None:
    """Start nothing more; what runs goes on."""
    with link.api() as api:
        answer = _order(api, batch_id, "pause", reason)
    _tell(answer, f"Batch {batch_id} starts nothing more; what runs goes on.", as_json=link.as_json)


def resume(batch_id: BatchId, *, reason: Reason = None, link: Link) -> None:
    """Go on with a batch that was paused."""
    with link.api() as api:
        answer = _order(api, batch_id, "resume", reason)
    _tell(answer, f"Batch {batch_id} goes on.", as_json=link.as_json)


def cancel(batch_id: BatchId, *, reason: Reason = None, link: Link) -> None:
    """Start nothing more, and cancel what this batch started; what it only joined goes on."""
    with link.api() as api:
        answer = _order(api, batch_id, "cancel", reason)
    _tell(answer, f"Cancel accepted.\n  follow it:  nodesmith batches watch {batch_id}", as_json=link.as_json)


def retry(
    batch_id: BatchId,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Where it failed, or was not started.  [default]")] = False,
    cancelled: Annotated[bool, typer.Option("--cancelled", help="Where it was cancelled.")] = False,
    all_unfinished: Annotated[
        bool, typer.Option("--all-unfinished", help="Wherever it ended without success.")
    ] = False,
    wait: Annotated[bool, typer.Option("--watch", help="Stay until it ends; Ctrl-C leaves it running.")] = False,
    reason: Reason = None,
    link: Link,
) -> None:
    """Ask again, as a new batch, on nodes where it did not succeed; version, digest and limits stay the same.

    Nodes where it succeeded are never asked again.
    """
    select = _selected(failed=failed, cancelled=cancelled, all_unfinished=all_unfinished)
    with link.api() as api:
        body = BatchRetry.model_construct(reason=reason or "", select=select)
        accepted = read(BatchAccepted, api.post_once(f"/api/batches/{segment(batch_id)}/retry", body))
        announce(accepted, as_json=link.as_json, is_watched=wait)
        if wait:
            raise typer.Exit(watch_batch(api, accepted.batch_id, as_json=link.as_json, patient=True))


def _selected(**said: bool) -> RetrySelect:
    chosen = [RetrySelect(option) for option, is_said in said.items() if is_said]
    if len(chosen) > 1:
        raise typer.BadParameter("Say one of --failed, --cancelled and --all-unfinished.")
    return chosen[0] if chosen else RetrySelect.FAILED


def _order(api: ApiClient, batch_id: str, order: str, reason: str | None) -> object:
    return api.post(f"/api/batches/{segment(batch_id)}/{order}", Because(reason=reason or ""))


def _tell(answer: object, sentence: str, *, as_json: bool) -> None:
    message = read(Message, answer)
    print_json(message) if as_json else typer.echo(sentence)


def announce(accepted: BatchAccepted, *, as_json: bool, is_watched: bool = False) -> None:
    if as_json and is_watched:
        print_json_line({"type": "accepted", **accepted.model_dump(mode="json")})
    elif as_json:
        print_json(accepted)
    else:
        typer.echo(announcement(accepted, is_watched=is_watched))


def announcement(accepted: BatchAccepted, *, is_watched: bool) -> str:
    begun = "This request was accepted before" if accepted.repeated else "Accepted"
    lines = [f"{begun}: batch {accepted.batch_id} on {len(accepted.jobs)} nodes"]
    lines += [f"  skipped {name}: {why}" for name, why in sorted(accepted.skipped.items())]
    return "\n".join(lines if is_watched else [*lines, f"  watch it:  nodesmith batches watch {accepted.batch_id}"])


def show_plan(plan: BatchPlan) -> None:
    console = make_console()
    what = f"{plan.backend} {plan.version}".rstrip()
    console.print(escape(f"{what}: {plan.targets} nodes, {plan.skipped} left out. Nothing was started."))
    display(console, table(plan.members, PLAN, console.width))

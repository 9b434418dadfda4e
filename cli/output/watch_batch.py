"""Watches a batch until it ends: a live table on a terminal, lines in a pipe, JSON lines for programs."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape

from nodesmith.cli.errors import INTERRUPTED, NOT_DONE
from nodesmith.cli.output.render import Column, colored, make_console, print_json_line, table
from nodesmith.cli.output.terminal import print_line
from nodesmith.client import Client, LinkLost
from nodesmith.client.polling import BatchUpdate
from nodesmith.contracts.http.batches import BatchDetail, MemberView
from nodesmith.domain.batch import BatchState
from nodesmith.domain.operation import State

_MOST_ROWS = 20
_SUCCESSFUL_STATES = {State.SUCCEEDED.value, "nothing_to_do", "skipped"}
_DONE_STATES = {State.SUCCEEDED.value, "nothing_to_do"}

MEMBERS: list[Column[MemberView]] = [
    Column("NODE", lambda member: escape(member.node_name)),
    Column("STATE", lambda member: colored(member.state) + (" (joined)" if member.joined else "")),
    Column("%", lambda member: f"{member.percentage:.0f}" if member.state == State.RUNNING else "", right=True),
    Column("WHAT", lambda member: escape(member.detail), may_wrap=True),
    Column("OPERATION", lambda member: member.op_id or "", from_width=120),
]


def watch_batch(api: Client, batch_id: str, *, as_json: bool, is_known_to_exist: bool = False) -> int:
    """Watch until the batch ends; return 0 only if it succeeded on every target. Ctrl-C ends the watching only."""
    updates = api.watch_batch(batch_id, is_known_to_exist=is_known_to_exist)
    try:
        last = _as_json_lines(updates) if as_json else _on_screen(updates)
    except KeyboardInterrupt:
        print_line(_detached_message(batch_id), err=True)
        return INTERRUPTED
    return 0 if last is not None and is_successful(last) else NOT_DONE


def is_successful(batch: BatchDetail) -> bool:
    return batch.state is BatchState.COMPLETED and all(member.state in _SUCCESSFUL_STATES for member in batch.members)


def _detached_message(batch_id: str) -> str:
    return (
        f"\nNo longer watching. Batch {batch_id} continues.\n"
        f"  watch it again:  nodesmith batches watch {batch_id}\n"
        f"  cancel it:       nodesmith batches cancel {batch_id}"
    )


def _as_json_lines(updates: Iterable[BatchUpdate]) -> BatchDetail | None:
    last = None
    for item in updates:
        if isinstance(item, BatchDetail):
            last = item
            print_json_line({"type": "batch", **item.model_dump(mode="json")})
        else:
            print_json_line({"type": "link_lost", "why": item.why})
    return last


def _on_screen(updates: Iterable[BatchUpdate]) -> BatchDetail | None:
    console = make_console()
    last = _live(updates, console) if console.is_terminal else _lines(updates, console)
    if last is not None:
        console.print(summary(last), soft_wrap=True)
    return last


def _live(updates: Iterable[BatchUpdate], console: Console) -> BatchDetail | None:
    last, note = None, ""
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for item in updates:
            if isinstance(item, LinkLost):
                note = f"no answer from the API ({item.why}); the batch continues, retrying"
            else:
                last, note = item, ""
            if last is not None:
                live.update(board(last, console.width, note), refresh=True)
    return last


def board(batch: BatchDetail, width: int, note: str = "") -> RenderableType:
    """Lay out the counts and the nodes, running and failed ones first, up to the maximum of rows."""
    rows = sorted(batch.members, key=lambda member: (_rank(member), member.node_name))
    more = len(rows) - _MOST_ROWS
    lines: list[RenderableType] = [escape(batch.message), "", table(rows[:_MOST_ROWS], MEMBERS, width)]
    if more > 0:
        lines.append(f"... and {more} more")
    return Group(*lines, escape(note)) if note else Group(*lines)


def _rank(member: MemberView) -> int:
    """Order the rows: running, failed, waiting, successful."""
    if member.state in (State.RUNNING, State.STILL_INSTALLING, State.CANCELLING):
        return 0
    if member.state in _SUCCESSFUL_STATES:
        return 3
    return 2 if member.state in (State.QUEUED, State.WAITING, "waiting_for_turn") else 1


def _lines(updates: Iterable[BatchUpdate], console: Console) -> BatchDetail | None:
    """Print for a pipe or a log: the counts when they change, and each node once it has its result."""
    last: BatchDetail | None = None
    reported: dict[str, str] = {}
    counts, is_lost = "", False
    for item in updates:
        if isinstance(item, LinkLost):
            if not is_lost:
                _print_timed(console, f"no answer from the API ({item.why}); the batch continues, retrying")
            is_lost = True
            continue
        last, is_lost = item, False
        for member in _new_results(item, reported):
            _print_timed(console, f"{member.node_name}: {member.detail or member.state}")
        if item.message != counts:
            counts = item.message
            _print_timed(console, counts)
    return last


def _new_results(batch: BatchDetail, reported: dict[str, str]) -> Iterator[MemberView]:
    open_states = {State.QUEUED, State.WAITING, State.RUNNING, State.STILL_INSTALLING, State.CANCELLING}
    for member in batch.members:
        if (
            member.state not in open_states
            and member.state != "waiting_for_turn"
            and reported.get(member.node_id) is None
        ):
            reported[member.node_id] = member.state
            yield member


def _print_timed(console: Console, text: str) -> None:
    console.print(f"{datetime.now():%H:%M:%S}  {escape(text)}", soft_wrap=True)  # noqa: DTZ005 - local time


def summary(batch: BatchDetail) -> str:
    """Describe on how many nodes it was done, and how to retry the others."""
    name = escape(f"{batch.kind} {batch.backend} {batch.version}".rstrip())
    skipped = sum(member.state == "skipped" for member in batch.members)
    done = sum(member.state in _DONE_STATES for member in batch.members)
    line = f"{colored(batch.state)}: {name}: done on {done} of {len(batch.members) - skipped} nodes"
    line += f", {skipped} skipped" if skipped else ""
    if batch.detail:
        line += f"; {escape(batch.detail)}"
    return line if is_successful(batch) else f"{line}\n  retry the rest:  nodesmith batches retry {batch.batch_id}"

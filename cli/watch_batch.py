"""Watching a batch until it ends: a live table on a terminal, lines in a pipe, JSON lines for programs."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape

from cli.client import ApiClient, read, segment
from cli.failures import INTERRUPTED, NOT_DONE, CommandFailed
from cli.follow import LinkLost
from cli.render import Column, make_console, print_json_line, table, word
from contracts.batch_http import ENDED_BATCHES, BatchDetail, BatchState, MemberView
from domain.operation import State

_EVERY_S = 0.5
_MOST_ROWS = 20
_SETTLED_WELL = {State.SUCCEEDED.value, "nothing_to_do", "skipped"}
_DONE_WELL = {State.SUCCEEDED.value, "nothing_to_do"}

News = BatchDetail | LinkLost

MEMBERS: list[Column[MemberView]] = [
    Column("NODE", lambda member: escape(member.node_name)),
    Column("STATE", lambda member: word(member.state) + (" (joined)" if member.joined else "")),
    Column("%", lambda member: f"{member.percentage:.0f}" if member.state == State.RUNNING else "", right=True),
    Column("WHAT", lambda member: escape(member.detail), may_wrap=True),
    Column("OPERATION", lambda member: member.op_id or "", from_width=120),
]


def fetch_batch(api: ApiClient, batch_id: str) -> BatchDetail:
    return read(BatchDetail, api.get(f"/api/batches/{segment(batch_id)}"))


def watch_batch(api: ApiClient, batch_id: str, *, as_json: bool, patient: bool = False) -> int:
    """Watch to the end; 0 only if it succeeded on every node that it was meant for. Ctrl-C ends the watching only."""
    news = follow_batch(api, batch_id, patient=patient)
    try:
        last = _as_json_lines(news) if as_json else _on_screen(news)
    except KeyboardInterrupt:
        sys.stderr.write(_goes_on(batch_id))
        return INTERRUPTED
    return 0 if last is not None and went_well(last) else NOT_DONE


def went_well(batch: BatchDetail) -> bool:
    return batch.state is BatchState.COMPLETED and all(member.state in _SETTLED_WELL for member in batch.members)


def follow_batch(
    api: ApiClient, batch_id: str, *, patient: bool = False, pause: Callable[[float], None] = time.sleep
) -> Iterator[News]:
    """Yield the batch now and at each change; an API that is away is asked again, because the batch goes on."""
    known: BatchDetail | None = None
    while known is None or known.state not in ENDED_BATCHES:
        try:
            batch = fetch_batch(api, batch_id)
        except CommandFailed as error:
            if not error.may_pass or (known is None and not patient):
                raise
            yield LinkLost(error.sentence)
        else:
            if batch != known:
                known = batch
                yield batch
        if known is None or known.state not in ENDED_BATCHES:
            pause(_EVERY_S)


def _goes_on(batch_id: str) -> str:
    return (
        f"\nNo longer watching. Batch {batch_id} goes on.\n"
        f"  watch it again:  nodesmith batches watch {batch_id}\n"
        f"  cancel it:       nodesmith batches cancel {batch_id}\n"
    )


def _as_json_lines(news: Iterable[News]) -> BatchDetail | None:
    last = None
    for item in news:
        if isinstance(item, BatchDetail):
            last = item
            print_json_line({"type": "batch", **item.model_dump(mode="json")})
        else:
            print_json_line({"type": "link_lost", "why": item.why})
    return last


def _on_screen(news: Iterable[News]) -> BatchDetail | None:
    console = make_console()
    last = _live(news, console) if console.is_terminal else _lines(news, console)
    if last is not None:
        console.print(summary(last), soft_wrap=True)
    return last


def _live(news: Iterable[News], console: Console) -> BatchDetail | None:
    last, note = None, ""
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for item in news:
            if isinstance(item, LinkLost):
                note = f"no answer from the API ({item.why}); the batch goes on, asking again"
            else:
                last, note = item, ""
            if last is not None:
                live.update(board(last, console.width, note), refresh=True)
    return last


def board(batch: BatchDetail, width: int, note: str = "") -> RenderableType:
    """Counts, then the nodes: those that move or went wrong first, as many as fit."""
    rows = sorted(batch.members, key=lambda member: (_rank(member), member.node_name))
    more = len(rows) - _MOST_ROWS
    lines: list[RenderableType] = [escape(batch.message), "", table(rows[:_MOST_ROWS], MEMBERS, width)]
    if more > 0:
        lines.append(f"... and {more} more")
    return Group(*lines, escape(note)) if note else Group(*lines)


def _rank(member: MemberView) -> int:
    """Running first, then failures, then those that wait; what went well is last."""
    if member.state in (State.RUNNING, State.STILL_INSTALLING, State.CANCELLING):
        return 0
    if member.state in _SETTLED_WELL:
        return 3
    return 2 if member.state in (State.QUEUED, State.WAITING, "waiting_for_turn") else 1


def _lines(news: Iterable[News], console: Console) -> BatchDetail | None:
    """For a pipe or a log: the counts when they change, and each node once it has its result."""
    last: BatchDetail | None = None
    said: dict[str, str] = {}
    counts, is_lost = "", False
    for item in news:
        if isinstance(item, LinkLost):
            if not is_lost:
                _say(console, f"no answer from the API ({item.why}); the batch goes on, asking again")
            is_lost = True
            continue
        last, is_lost = item, False
        for member in _settled(item, said):
            _say(console, f"{member.node_name}: {member.detail or member.state}")
        if item.message != counts:
            counts = item.message
            _say(console, counts)
    return last


def _settled(batch: BatchDetail, said: dict[str, str]) -> Iterator[MemberView]:
    unsettled = {State.QUEUED, State.WAITING, State.RUNNING, State.STILL_INSTALLING, State.CANCELLING}
    for member in batch.members:
        if member.state not in unsettled and member.state != "waiting_for_turn" and said.get(member.node_id) is None:
            said[member.node_id] = member.state
            yield member


def _say(console: Console, text: str) -> None:
    console.print(f"{datetime.now():%H:%M:%S}  {escape(text)}", soft_wrap=True)  # noqa: DTZ005 - the reader's clock


def summary(batch: BatchDetail) -> str:
    """The last word: on how many nodes it was done, and what to do about the others."""
    name = escape(f"{batch.kind} {batch.backend} {batch.version}".rstrip())
    skipped = sum(member.state == "skipped" for member in batch.members)
    done = sum(member.state in _DONE_WELL for member in batch.members)
    line = f"{word(batch.state)}: {name}: done on {done} of {len(batch.members) - skipped} nodes"
    line += f", {skipped} skipped" if skipped else ""
    if batch.detail:
        line += f"; {escape(batch.detail)}"
    return line if went_well(batch) else f"{line}\n  again for the rest:  nodesmith batches retry {batch.batch_id}"

"""Breaks in the event stream."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.mutations.arming import Break, names_of, rules

_FILTERED = ("test_stream_is_filtered_by_operation_node_and_batch",)
_CHANGES_REPLICAS = "test_reader_that_changes_replicas_misses_nothing_and_gets_nothing_twice"


async def _tell_the_last_again(original: Any, self: Any, stream: Any) -> Any:
    behind = SimpleNamespace(interest=stream.interest, cursor=max(stream.cursor - 1, 0))
    return await original(self, behind)


async def _tell_from_memory_only(original: Any, self: Any, stream: Any) -> Any:
    floor, self._floor = self._floor, -1
    try:
        return await original(self, stream)
    finally:
        self._floor = floor


def _keep_every_tick(_: Any, self: Any, tick: Any, frame: bytes) -> None:
    if self.interest.matches_tick(tick):
        self._ticks[f"{tick.op_id} {len(self._ticks)}"] = frame
        self.news.set()


def _read_committed(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    loose = self._engine.execution_options(isolation_level="READ COMMITTED", postgresql_readonly=True)
    self._snapshots = names_of(original).async_sessionmaker(loose, expire_on_commit=False)


def _put_the_keep_alive_off(original: Any, self: Any) -> Any:
    """Asked before each wait, so whatever ends a wait sets the time anew."""
    self._due = self._clock() + self._every_s
    return original(self)


def _admitted_for_ever(_: Any, access: Any, token: str, session: str | None) -> Any:
    async def is_admitted() -> bool:
        return True

    return is_admitted


async def _trust_the_number(original: Any, self: Any) -> Any:
    return await self._feed.after(self._last, limit=names_of(original).PAGE)


async def _trust_what_is_higher(_: Any, self: Any, known: Any, *, limit: int) -> Any:
    """A lower highest number is noticed; a number that was given to another event is not."""
    if await self.latest_id() < known.id:
        return None
    return await self.after(known.id, limit=limit)


STREAM = (
    Break(
        rules("stream"),
        "a database that was restored is read on from the old number",
        "nodesmith.api.stream:EventHub._next_page",
        _trust_the_number,
        tests=("test_open_stream_gets_a_reset_after_a_restore_and_continues",),
        waits=True,
    ),
    Break(
        rules("stream"),
        "a restored database is detected by its highest event number only",
        "nodesmith.store.operations.events:EventFeed.from_event",
        _trust_what_is_higher,
        tests=("test_open_stream_gets_a_reset_after_a_restore_and_continues",),
        waits=True,
    ),
    Break(
        rules("stream"),
        "Last-Event-ID is ignored",
        "nodesmith.api.stream:EventHub.start_cursor",
        lambda original, self, interest, last_event_id: original(self, interest, None),
        tests=(_CHANGES_REPLICAS, "test_stream_begins_now_unless_a_number_is_given"),
        waits=True,
    ),
    Break(
        rules("stream"),
        "the last event is sent again",
        "nodesmith.api.stream:EventHub._page",
        _tell_the_last_again,
        tests=(_CHANGES_REPLICAS,),
    ),
    Break(
        rules("stream"),
        "only events in this replica's memory are sent",
        "nodesmith.api.stream:EventHub._page",
        _tell_from_memory_only,
        tests=("test_events_before_the_window_come_from_the_database",),
        waits=True,
    ),
    Break(
        rules("stream"),
        "a reader that takes nothing is kept for ever",
        "nodesmith.api.v1.events:EventStreamResponse.__init__",
        lambda original, self, frames, **_: original(self, frames, stuck_after_s=None),
        tests=("test_reader_that_takes_nothing_is_disconnected",),
        waits=True,
    ),
    Break(
        rules("stream"),
        "every tick waits for a slow reader",
        "nodesmith.api.stream:Stream.put_tick",
        _keep_every_tick,
        tests=("test_reader_that_takes_nothing_is_disconnected",),
    ),
    Break(
        rules("stream"),
        "a filter is forgotten once the reader has caught up",
        "nodesmith.api.stream:StreamFilter.matches",
        lambda _, self, event: True,
        tests=_FILTERED,
    ),
    Break(
        rules("stream"),
        "the filter by node is left out",
        "nodesmith.api.stream:StreamFilter.matches",
        lambda original, self, event: original(replace(self, node_id=None), event),
        tests=_FILTERED,
    ),
    Break(
        rules("stream"),
        "the filter by batch is left out",
        "nodesmith.api.stream:StreamFilter.matches",
        lambda original, self, event: original(replace(self, batch_id=None), event),
        tests=_FILTERED,
    ),
    Break(
        rules("stream"),
        "ticks are not filtered",
        "nodesmith.api.stream:StreamFilter.matches_tick",
        lambda _, self, tick: True,
        tests=(
            "test_progress_ticks_have_no_event_number",
            "test_ticks_of_a_batch_reach_its_stream",
        ),
    ),
    Break(
        rules("stream"),
        "each query of an answer sees the database at another moment",
        "nodesmith.store.database:Database.__init__",
        _read_committed,
        tests=(
            "test_end_recorded_during_a_read_of_the_list_reaches_the_stream",
            "test_batch_that_ends_while_it_is_read_is_shown_before_its_end",
            "test_inventory_and_its_time_are_read_together",
            "test_every_answer_is_read_at_one_moment",
        ),
        waits=True,
    ),
    Break(
        rules("stream"),
        "whatever wakes a stream puts its keep-alive off",
        "nodesmith.api.stream:KeepAlive.remaining_s",
        _put_the_keep_alive_off,
        tests=("test_events_of_other_operations_do_not_delay_the_keep_alive",),
        waits=True,
    ),
    Break(
        rules("stream"),
        "a token that was revoked keeps its streams",
        "nodesmith.api.v1.events:_still_admitted",
        _admitted_for_ever,
        tests=("test_revoked_token_ends_its_streams",),
        waits=True,
    ),
)

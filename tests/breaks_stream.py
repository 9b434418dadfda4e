"""Breaks in the event stream."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.breaking.arming import Break, rules

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
    if self.interest.takes_tick(tick):
        self._ticks[f"{tick.op_id} {len(self._ticks)}"] = frame
        self.news.set()


STREAM = (
    Break(
        rules("stream"),
        "Last-Event-ID is ignored",
        "api.stream:EventHub.start_of",
        lambda original, self, last_event_id: original(self, None),
        tests=(_CHANGES_REPLICAS, "test_stream_begins_now_unless_a_number_is_given"),
        waits=True,
    ),
    Break(
        rules("stream"),
        "the last event is told again",
        "api.stream:EventHub._page",
        _tell_the_last_again,
        tests=(_CHANGES_REPLICAS,),
    ),
    Break(
        rules("stream"),
        "only what is in this replica's memory is told",
        "api.stream:EventHub._page",
        _tell_from_memory_only,
        tests=("test_what_lies_before_the_window_comes_from_the_database",),
        waits=True,
    ),
    Break(
        rules("stream"),
        "a reader that takes nothing is kept for ever",
        "api.routers.events:EventStreamResponse.__init__",
        lambda original, self, frames, **_: original(self, frames, stuck_after_s=None),
        tests=("test_reader_that_takes_nothing_is_let_go",),
        waits=True,
    ),
    Break(
        rules("stream"),
        "every tick waits for a slow reader",
        "api.stream:Stream.put_tick",
        _keep_every_tick,
        tests=("test_reader_that_takes_nothing_is_let_go",),
    ),
    Break(
        rules("stream"),
        "a filter is forgotten once the reader has caught up",
        "api.stream:Interest.takes",
        lambda _, self, event: True,
        tests=_FILTERED,
    ),
    Break(
        rules("stream"),
        "the filter by node is left out",
        "api.stream:Interest.takes",
        lambda original, self, event: original(replace(self, node_id=None), event),
        tests=_FILTERED,
    ),
    Break(
        rules("stream"),
        "the filter by batch is left out",
        "api.stream:Interest.takes",
        lambda original, self, event: original(replace(self, batch_id=None), event),
        tests=_FILTERED,
    ),
    Break(
        rules("stream"),
        "ticks are not filtered",
        "api.stream:Interest.takes_tick",
        lambda _, self, tick: True,
        tests=(
            "test_progress_of_a_node_rides_the_stream_without_a_number",
            "test_ticks_of_a_batch_reach_its_stream",
        ),
    ),
)

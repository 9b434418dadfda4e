"""Following one operation over the event stream, without gaps when the connection breaks or the API restarts.

An event contains everything that a change of state changes, so it is applied directly. The client fetches the operation
once at the start, and once more when it has ended. This module decides; the transports send and receive.
"""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from nodesmith.client.back_off import BackOff, LinkLost
from nodesmith.client.errors import UnexpectedAnswer, Unreachable
from nodesmith.client.sse import COMMENT, ServerSentEvent
from nodesmith.contracts.http.operations import RESET, OperationDetail, OperationEvent, ProgressTick, ProgressView
from nodesmith.contracts.words import remedy
from nodesmith.domain.operation import ENDED, State

PROGRESS = "progress"

Shape = TypeVar("Shape", bound=BaseModel)

Update = OperationDetail | ProgressTick | LinkLost


class Follower:
    """What is known of one operation, and what to do with each answer and event."""

    def __init__(self, op_id: str, *, is_known_to_exist: bool) -> None:
        self.op_id = op_id
        self.back_off = BackOff(is_known_to_exist=is_known_to_exist)
        self._operation: OperationDetail | None = None

    @property
    def has_ended(self) -> bool:
        return self._operation is not None and self._operation.state in ENDED

    @property
    def last_event_id(self) -> int:
        """Where the stream has to continue: the newest event of the same snapshot as the operation."""
        timeline = self._operation.timeline if self._operation else []
        return timeline[-1].id if timeline else 0

    def take_detail(self, operation: OperationDetail) -> Iterator[Update]:
        known, self._operation = self._operation, operation
        if operation != known:
            self.back_off.reset()
            yield operation

    def needs_detail(self, event: ServerSentEvent) -> bool:
        """Whether the operation has to be fetched: it ended, the stream was reset, or no worker has it yet."""
        if event.event == COMMENT:  # the API reports a missing worker only in its answer
            return self._known.state is State.QUEUED
        if event.event == PROGRESS:
            return False
        return event.event == RESET or _read(OperationEvent, event).state in ENDED

    def take_event(self, event: ServerSentEvent) -> Iterator[Update]:
        """Apply an event for which the operation need not be fetched."""
        if event.event == COMMENT:
            return
        if event.event == PROGRESS:
            yield from self._take_tick(_read(ProgressTick, event))
            return
        change = _read(OperationEvent, event)
        if change.id > self.last_event_id:  # an answer that was fetched meanwhile contains older ones
            yield from self.take_detail(_with_change(self._known, change))

    def _take_tick(self, tick: ProgressTick) -> Iterator[Update]:
        if self._known.state is not State.WAITING:  # a tick in this state is a late one of a failed attempt
            self._operation = _with_tick(self._known, tick)
            yield tick

    @property
    def _known(self) -> OperationDetail:
        assert self._operation is not None  # noqa: S101 - events follow the first answer
        return self._operation


def closed_stream(url: str) -> Unreachable:
    return Unreachable(f"The API at {url} closed the event stream.", "")


def _read(shape: type[Shape], event: ServerSentEvent) -> Shape:
    try:
        return shape.model_validate(event.data)
    except ValidationError as error:
        raise UnexpectedAnswer(f"An event of the API is not a {shape.__name__}.") from error


def _with_tick(operation: OperationDetail, tick: ProgressTick) -> OperationDetail:
    gauge = ProgressView.model_validate(tick.model_dump(include=set(ProgressView.model_fields)))
    return operation.model_copy(update={"progress": gauge})


def _with_change(operation: OperationDetail, event: OperationEvent) -> OperationDetail:
    known = {name: getattr(event, name) for name in ("state", "reason", "detail", "until", "attempt", "message")}
    derived = {
        "remedy": remedy(event.state, event.reason),
        "progress": operation.progress.during(event.state),
        "stalled": False,
        "timeline": [*operation.timeline, event],
    }
    return operation.model_copy(update={**known, **derived})

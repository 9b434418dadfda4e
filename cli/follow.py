"""Follows one operation over the event stream, without gaps when the connection breaks or the API restarts.

An event contains everything that a change of state changes, so it is applied directly. The client fetches the operation
once at the start, and once more when it has ended.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx2

from nodesmith.cli.client import COMMENT, ApiClient, ServerSentEvent, read, segment
from nodesmith.cli.errors import CommandFailed
from nodesmith.contracts.http.operations import RESET, OperationDetail, OperationEvent, ProgressTick, ProgressView
from nodesmith.contracts.words import remedy
from nodesmith.domain.operation import ENDED, State

EVENTS = "/api/v1/events"
PROGRESS = "progress"
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True)
class LinkLost:
    """The API does not answer at the moment; the operation continues."""

    why: str


Update = OperationDetail | ProgressTick | LinkLost


def follow(
    api: ApiClient, op_id: str, *, retry_first_request: bool = False, pause: Callable[[float], None] = time.sleep
) -> Iterator[Update]:
    """Yield the operation now and at each change, and progress ticks in between, until it ends.

    `retry_first_request`: the operation is known to exist, so an unanswered first request is retried too.
    """
    operation: OperationDetail | None = None
    waits = back_off()
    while operation is None or operation.state not in ENDED:
        try:
            for update in _listen(api, op_id, operation):
                if isinstance(update, OperationDetail):
                    operation, waits = update, back_off()
                yield update
        except (CommandFailed, httpx2.TransportError) as error:
            if not _is_retryable(error) or (operation is None and not retry_first_request):
                raise
            yield LinkLost(error.sentence if isinstance(error, CommandFailed) else type(error).__name__)
            pause(max(next(waits), _requested_wait_s(error)))


def back_off() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)


def _is_retryable(error: CommandFailed | httpx2.TransportError) -> bool:
    return not isinstance(error, CommandFailed) or error.is_retryable


def _requested_wait_s(error: CommandFailed | httpx2.TransportError) -> float:
    return error.retry_after_s if isinstance(error, CommandFailed) else 0.0


def fetch(api: ApiClient, op_id: str) -> OperationDetail:
    return read(OperationDetail, api.get(f"/api/operations/{segment(op_id)}"))


def _listen(api: ApiClient, op_id: str, known: OperationDetail | None) -> Iterator[Update]:
    """Yield the operation if it has changed, then its updates from the last known event on."""
    operation = fetch(api, op_id)
    if operation != known:
        yield operation
    if operation.state in ENDED:
        return
    last_id = operation.timeline[-1].id if operation.timeline else 0
    with api.events(EVENTS, last_event_id=str(last_id), op_id=op_id) as events:
        while operation.state not in ENDED:
            event = next(events, None)
            if event is None:
                raise httpx2.RemoteProtocolError("the stream was closed")
            if event.event != PROGRESS:
                before, operation = operation, _apply_event(api, operation, event)
                if operation != before:
                    yield operation
            elif operation.state is not State.WAITING:  # a tick in this state is a late one of a failed attempt
                tick = read(ProgressTick, event.data)
                operation = _apply_tick(operation, tick)
                yield tick


def _apply_event(api: ApiClient, operation: OperationDetail, event: ServerSentEvent) -> OperationDetail:
    """Return the operation after this event."""
    if event.event == RESET:
        return fetch(api, operation.op_id)
    if event.event == COMMENT:  # the API reports a missing worker only in its answer
        return fetch(api, operation.op_id) if operation.state is State.QUEUED else operation
    change = read(OperationEvent, event.data)
    return fetch(api, operation.op_id) if change.state in ENDED else _apply_change(operation, change)


def _apply_tick(operation: OperationDetail, tick: ProgressTick) -> OperationDetail:
    gauge = ProgressView.model_validate(tick.model_dump(include=set(ProgressView.model_fields)))
    return operation.model_copy(update={"progress": gauge})


def _apply_change(operation: OperationDetail, event: OperationEvent) -> OperationDetail:
    known = {name: getattr(event, name) for name in ("state", "reason", "detail", "until", "attempt", "message")}
    derived = {
        "remedy": remedy(event.state, event.reason),
        "progress": operation.progress.during(event.state),
        "stalled": False,
        "timeline": [*operation.timeline, event],
    }
    return operation.model_copy(update={**known, **derived})

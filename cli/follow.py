"""Following one operation over the event stream: nothing is missed when the link breaks, or the API restarts.

An event says all that a change of state changes, so it is taken as it is. The API is asked once for the operation, and
once more for how it ended.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx2

from cli.client import COMMENT, ApiClient, ServerSentEvent, read, segment
from cli.failures import CommandFailed
from contracts.operation_http import OperationDetail, OperationEvent, ProgressTick, ProgressView
from contracts.words import remedy
from domain.operation import ENDED, State

EVENTS = "/api/events"
PROGRESS = "progress"
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 2.0


@dataclass(frozen=True)
class LinkLost:
    """The API cannot be asked at the moment; the operation does not care."""

    why: str


News = OperationDetail | ProgressTick | LinkLost


def follow(
    api: ApiClient, op_id: str, *, patient: bool = False, pause: Callable[[float], None] = time.sleep
) -> Iterator[News]:
    """Yield the operation now and at each change, ticks between; ends with its end.

    `patient`: it is known to exist, so an API that does not answer the first question is no reason to give up.
    """
    operation: OperationDetail | None = None
    waits = pauses()
    while operation is None or operation.state not in ENDED:
        try:
            for news in _listen(api, op_id, operation):
                if isinstance(news, OperationDetail):
                    operation, waits = news, pauses()
                yield news
        except (CommandFailed, httpx2.TransportError) as error:
            if not _may_pass(error) or (operation is None and not patient):
                raise
            yield LinkLost(error.sentence if isinstance(error, CommandFailed) else type(error).__name__)
            pause(next(waits))


def pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)


def _may_pass(error: CommandFailed | httpx2.TransportError) -> bool:
    return not isinstance(error, CommandFailed) or error.may_pass


def fetch(api: ApiClient, op_id: str) -> OperationDetail:
    return read(OperationDetail, api.get(f"/api/operations/{segment(op_id)}"))


def _listen(api: ApiClient, op_id: str, known: OperationDetail | None) -> Iterator[News]:
    """What has changed, then what happens, from the last event that is known on."""
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
                before, operation = operation, _after(api, operation, event)
                if operation != before:
                    yield operation
            elif operation.state is not State.WAITING:  # there a tick is a late one, of an attempt that has failed
                tick = read(ProgressTick, event.data)
                operation = _progressed(operation, tick)
                yield tick


def _after(api: ApiClient, operation: OperationDetail, event: ServerSentEvent) -> OperationDetail:
    """The operation as this event leaves it."""
    if event.event == COMMENT:  # whether a worker is missing is told by the API, as time goes by
        return fetch(api, operation.op_id) if operation.state is State.QUEUED else operation
    change = read(OperationEvent, event.data)
    return fetch(api, operation.op_id) if change.state in ENDED else _changed(operation, change)


def _progressed(operation: OperationDetail, tick: ProgressTick) -> OperationDetail:
    gauge = ProgressView.model_validate(tick.model_dump(include=set(ProgressView.model_fields)))
    return operation.model_copy(update={"progress": gauge})


def _changed(operation: OperationDetail, event: OperationEvent) -> OperationDetail:
    known = {name: getattr(event, name) for name in ("state", "reason", "detail", "until", "attempt", "message")}
    derived = {
        "remedy": remedy(event.state, event.reason),
        "progress": operation.progress.during(event.state),
        "stalled": False,
        "timeline": [*operation.timeline, event],
    }
    return operation.model_copy(update={**known, **derived})

"""Following one operation over the event stream: nothing is missed when the link breaks, or the API restarts."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx2

from cli.client import ApiClient, read, segment
from cli.failures import CommandFailed
from contracts.http import OperationDetail, ProgressTick
from domain.operation import ENDED

EVENTS = "/api/events"
PROGRESS = "progress"
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True)
class LinkLost:
    """The API cannot be asked at the moment; the operation does not care."""

    why: str


News = OperationDetail | ProgressTick | LinkLost


def follow(api: ApiClient, op_id: str, *, pause: Callable[[float], None] = time.sleep) -> Iterator[News]:
    """Yield the operation now and at each change, ticks between; ends with its end."""
    operation = fetch(api, op_id)
    yield operation
    wait = _FIRST_PAUSE
    while operation.state not in ENDED:
        for news in _until_the_link_breaks(api, operation):
            if isinstance(news, OperationDetail):
                operation, wait = news, _FIRST_PAUSE
            yield news
        if operation.state not in ENDED:
            pause(wait)
            wait = min(wait * 2, _LONGEST_PAUSE)


def fetch(api: ApiClient, op_id: str) -> OperationDetail:
    return read(OperationDetail, api.get(f"/api/operations/{segment(op_id)}"))


def _until_the_link_breaks(api: ApiClient, known: OperationDetail) -> Iterator[News]:
    try:
        yield from _listen(api, known)
    except httpx2.TransportError as error:
        yield LinkLost(type(error).__name__)
    except CommandFailed as failure:
        if not failure.may_pass:
            raise
        yield LinkLost(failure.sentence)


def _listen(api: ApiClient, known: OperationDetail) -> Iterator[News]:
    """Listen from the last event that is known; whatever happened since is read before."""
    last_id = known.timeline[-1].id if known.timeline else 0
    with api.events(EVENTS, last_event_id=str(last_id), op_id=known.op_id) as events:
        operation = fetch(api, known.op_id)
        if operation != known:
            yield operation
        while operation.state not in ENDED:
            event = next(events, None)
            if event is None:
                raise httpx2.RemoteProtocolError("the stream was closed")
            if event.event == PROGRESS:
                yield read(ProgressTick, event.data)
            else:
                operation = fetch(api, known.op_id)
                yield operation

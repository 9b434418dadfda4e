"""Server-sent events: parses the lines of the event stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nodesmith.client.errors import UnexpectedAnswer

COMMENT = ":"
"""event name of a comment, which the API sends as a keep-alive"""


@dataclass(frozen=True)
class ServerSentEvent:
    """One event of the stream; progress ticks have no id."""

    event: str
    data: Any
    id: str = ""


class EventParser:
    """Takes one line at a time; an empty line ends an event, a comment is an event of its own."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def feed(self, line: str) -> Iterator[ServerSentEvent]:
        name, _, value = line.partition(":")
        if name:
            value = value.removeprefix(" ")
            known = self._fields.get(name)
            self._fields[name] = f"{known}\n{value}" if name == "data" and known is not None else value
        elif line:
            yield ServerSentEvent(COMMENT, value.strip())
        else:
            yield from self._event()

    def _event(self) -> Iterator[ServerSentEvent]:
        fields, self._fields = self._fields, {}
        if "data" in fields:
            yield ServerSentEvent(fields.get("event", "message"), _data(fields["data"]), fields.get("id", ""))


def _data(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnexpectedAnswer("An event of the API is not JSON.") from error

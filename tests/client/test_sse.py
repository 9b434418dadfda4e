"""The lines of the event stream become events."""

import pytest

from nodesmith.client import UnexpectedAnswer
from nodesmith.client.sse import COMMENT, EventParser, ServerSentEvent


def parse(*lines: str) -> list[ServerSentEvent]:
    parser = EventParser()
    return [event for line in lines for event in parser.feed(line)]


def test_events_are_parsed() -> None:
    stream = [
        "retry: 1000",
        "id: 3",
        "",
        ": hello",
        "",
        "id: 7",
        "event: state",
        'data: {"a":',
        "data: 1}",
        "",
        'data: "bare"',
        "",
        "data: 1",
    ]
    assert parse(*stream) == [
        ServerSentEvent(COMMENT, "hello"),
        ServerSentEvent("state", {"a": 1}, "7"),
        ServerSentEvent("message", "bare"),
    ]


def test_event_that_is_not_json_is_an_unexpected_answer() -> None:
    with pytest.raises(UnexpectedAnswer, match="An event of the API is not JSON"):
        parse("event: operation", "data: <html>", "")

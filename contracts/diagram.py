"""The transition table as a page: `python -m nodesmith.contracts.diagram > docs/reference/states.md`."""

import sys
from collections.abc import Iterator

from nodesmith.contracts.words import STATES
from nodesmith.domain.operation import ENDED, OPEN, TRANSITIONS, Event, State

_INTRODUCTION = """\
# The states of an operation

Generated from `domain/operation.py` by `python -m nodesmith.contracts.diagram > docs/reference/states.md`.
A test fails when this page is out of date.
Every move of an operation goes through that table, and the database refuses a state that is not in it.

An arrow to `ended` stands for five: each open state can go to each end at any moment.
An ended operation never moves again; `retry` makes a new one.
"""


def page() -> str:
    """Return the page: a diagram, the meaning of each state, and a table of every transition."""
    return "\n".join([_INTRODUCTION, "```mermaid", *_picture(), "```", "", *_meanings(), "", *_edges(), ""])


def _picture() -> Iterator[str]:
    yield "stateDiagram-v2"
    yield "    [*] --> queued"
    for state, moves in TRANSITIONS.items():
        for event, after in moves.items():
            if after in OPEN and after is not state:
                yield f"    {state} --> {after}: {event}"
        yield f"    {state} --> ended"
    yield "    state ended {"
    yield from (f"        {state}" for state in State if state in ENDED)
    yield "    }"


def _meanings() -> Iterator[str]:
    yield "| state | what people read |"
    yield "|---|---|"
    yield from (f"| `{state}` | {STATES[state].sentence} |" for state in State if state is not State.UNKNOWN)


def _edges() -> Iterator[str]:
    """All transitions, one row per event; a dash means that the table refuses the event."""
    yield "| event | " + " | ".join(f"from `{state}`" for state in TRANSITIONS) + " |"
    yield "|---|" + "---|" * len(TRANSITIONS)
    for event in Event:
        yield f"| {event} | " + " | ".join(moves.get(event, "-") for moves in TRANSITIONS.values()) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())

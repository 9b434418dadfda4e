from datetime import timedelta

import pytest

from nodesmith.domain.errors import IllegalTransition
from nodesmith.domain.operation import ENDED, OPEN, PERMANENT, TRANSITIONS, Event, Reason, State, advance, back_off

ENDS = {
    Event.SUCCEED: State.SUCCEEDED,
    Event.FAIL: State.FAILED,
    Event.CANCEL: State.CANCELLED,
    Event.EXPIRE: State.EXPIRED,
    Event.EXHAUST: State.DEAD_LETTER,
}

MOVES = [
    (State.QUEUED, Event.DISPATCH, State.RUNNING),
    (State.QUEUED, Event.POSTPONE, State.WAITING),
    (State.WAITING, Event.DISPATCH, State.RUNNING),
    (State.WAITING, Event.POSTPONE, State.WAITING),
    (State.WAITING, Event.LOSE_SIGHT, State.STILL_INSTALLING),
    (State.RUNNING, Event.DISPATCH, State.RUNNING),
    (State.RUNNING, Event.POSTPONE, State.WAITING),
    (State.RUNNING, Event.LOSE_SIGHT, State.STILL_INSTALLING),
    (State.STILL_INSTALLING, Event.DISPATCH, State.RUNNING),
    (State.STILL_INSTALLING, Event.POSTPONE, State.WAITING),
    (State.STILL_INSTALLING, Event.LOSE_SIGHT, State.STILL_INSTALLING),
    *((state, Event.ASK_CANCEL, State.CANCELLING) for state in sorted(OPEN)),
    *((state, event, end) for state in sorted(OPEN) for event, end in ENDS.items()),
]


@pytest.mark.parametrize(("state", "event", "after"), MOVES)
def test_an_event_leads_where_the_design_says(state: State, event: Event, after: State) -> None:
    assert advance(state, event) is after


def test_there_is_no_edge_beside_those_of_the_design() -> None:
    edges = {(state, event, after) for state, row in TRANSITIONS.items() for event, after in row.items()}
    assert edges == set(MOVES)


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("event", list(Event))
def test_an_ended_operation_never_moves(state: State, event: Event) -> None:
    """S62."""
    with pytest.raises(IllegalTransition, match=f"A {state} operation cannot take the event {event}"):
        advance(state, event)


@pytest.mark.parametrize("event", [Event.DISPATCH, Event.POSTPONE, Event.LOSE_SIGHT])
def test_a_cancelling_operation_is_never_sent_to_the_node_again(event: Event) -> None:
    with pytest.raises(IllegalTransition):
        advance(State.CANCELLING, event)


def test_a_queued_operation_cannot_become_still_installing_before_it_was_sent() -> None:
    with pytest.raises(IllegalTransition):
        advance(State.QUEUED, Event.LOSE_SIGHT)


def test_every_state_is_open_or_ended_and_only_one_of_them() -> None:
    assert set(State) - {State.UNKNOWN} == OPEN | ENDED
    assert not OPEN & ENDED
    assert set(TRANSITIONS) == OPEN


def test_back_off_doubles_up_to_a_quarter_of_an_hour() -> None:
    waits = [back_off(failures) for failures in range(1, 11)]
    assert waits == [timedelta(seconds=30)] + [
        timedelta(minutes=minutes) for minutes in (1, 2, 4, 8, 15, 15, 15, 15, 15)
    ]


@pytest.mark.parametrize("failures", [-1, 0, 1])
def test_back_off_is_never_shorter_than_its_first_step(failures: int) -> None:
    assert back_off(failures) == timedelta(seconds=30)


def test_back_off_stays_at_its_cap_for_any_number_of_failures() -> None:
    assert back_off(10**6, first=timedelta(milliseconds=1), cap=timedelta(seconds=1)) == timedelta(seconds=1)


def test_retryable_reasons_are_not_permanent() -> None:
    curable = {Reason.DOWNLOAD_FAILED, Reason.INTERRUPTED, Reason.NODE_ERROR, Reason.SOURCE_DOWN}
    assert not curable & PERMANENT

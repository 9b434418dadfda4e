"""Operations: states, events, and the transition table that allows a state change."""

import enum
from datetime import timedelta

from nodesmith.domain.errors import IllegalTransition
from nodesmith.domain.wire_enum import WireEnum


class Kind(WireEnum):
    INSTALL = "install"
    UPGRADE = "upgrade"
    ROLLBACK = "rollback"
    REMOVE = "remove"
    UNKNOWN = "unknown"


class State(WireEnum):
    QUEUED = "queued"
    WAITING = "waiting"
    RUNNING = "running"
    STILL_INSTALLING = "still_installing"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DEAD_LETTER = "dead_letter"
    UNKNOWN = "unknown"
    """read from a newer peer; no operation is ever in this state"""


class Event(enum.StrEnum):
    """Events of an operation; `advance` returns the state that follows."""

    DISPATCH = "dispatch"
    """sent to the node, or reattached to its work there"""
    POSTPONE = "postpone"
    """must wait: node away, back-off, node busy, source down, held"""
    LOSE_SIGHT = "lose_sight"
    """no answer in time, or a worker died: the node keeps working"""
    ASK_CANCEL = "ask_cancel"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    EXHAUST = "exhaust"


class Phase(WireEnum):
    RESOLVING = "resolving"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    EXTRACTING = "extracting"
    SWAPPING = "swapping"
    STARTING = "starting"
    UNKNOWN = "unknown"


class Reason(WireEnum):
    """Why an operation waits or ended; `nodesmith.contracts.words` has a sentence and a remedy for each."""

    # waits
    NODE_AWAY = "node_away"
    NATS_DOWN = "nats_down"
    BATCH_TURN = "batch_turn"
    BACK_OFF = "back_off"
    NODE_BUSY = "node_busy"
    SOURCE_DOWN = "source_down"
    HELD = "held"
    ORDER = "order"
    # failures that a retry may fix
    DOWNLOAD_FAILED = "download_failed"
    SOURCE_DENIED = "source_denied"
    STILL_RUNS = "still_runs"
    INTERRUPTED = "interrupted"
    NODE_ERROR = "node_error"
    # permanent failures
    BAD_DIGEST = "bad_digest"
    BAD_ARCHIVE = "bad_archive"
    ARCHIVE_ESCAPES = "archive_escapes"
    NO_SUCH_BACKEND = "no_such_backend"
    NO_DISK = "no_disk"
    UNSUPPORTED_PLATFORM = "unsupported_platform"
    NOT_INSTALLED = "not_installed"
    NO_PREVIOUS_VERSION = "no_previous_version"
    DID_NOT_START = "did_not_start"
    ROLLED_BACK = "rolled_back"
    REFUSED_BY_NODE = "refused_by_node"
    DEADLINE = "deadline"
    LOST_NODE = "lost_node"
    ENDED_OUTSIDE = "ended_outside"
    NOT_ADMITTED = "not_admitted"
    # cancellations
    REQUESTED = "requested"
    SUPERSEDED = "superseded"
    BATCH_STOPPED = "batch_stopped"
    BATCH_CANCELLED = "batch_cancelled"
    NODE_DRAINED = "node_drained"
    NODE_REMOVED = "node_removed"
    FORCED = "forced"
    # the rest
    NODE_NEVER_CAME = "node_never_came"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    UNKNOWN = "unknown"


OPEN = frozenset({State.QUEUED, State.WAITING, State.RUNNING, State.STILL_INSTALLING, State.CANCELLING})
ENDED = frozenset(State) - OPEN - {State.UNKNOWN}

PERMANENT = frozenset(
    {
        Reason.BAD_DIGEST,
        Reason.BAD_ARCHIVE,
        Reason.ARCHIVE_ESCAPES,
        Reason.NO_SUCH_BACKEND,
        Reason.NO_DISK,
        Reason.UNSUPPORTED_PLATFORM,
        Reason.NOT_INSTALLED,
        Reason.NO_PREVIOUS_VERSION,
        Reason.DID_NOT_START,
        Reason.ROLLED_BACK,
        Reason.REFUSED_BY_NODE,
    }
)
"""Failures that end an operation at once, because a retry would fail the same way."""

_ENDINGS = {
    Event.SUCCEED: State.SUCCEEDED,
    Event.FAIL: State.FAILED,
    Event.CANCEL: State.CANCELLED,
    Event.EXPIRE: State.EXPIRED,
    Event.EXHAUST: State.DEAD_LETTER,
}

_MOVES = {
    State.QUEUED: {Event.DISPATCH: State.RUNNING, Event.POSTPONE: State.WAITING},
    State.WAITING: {
        Event.DISPATCH: State.RUNNING,
        Event.POSTPONE: State.WAITING,
        Event.LOSE_SIGHT: State.STILL_INSTALLING,
    },
    State.RUNNING: {
        Event.DISPATCH: State.RUNNING,
        Event.POSTPONE: State.WAITING,
        Event.LOSE_SIGHT: State.STILL_INSTALLING,
    },
    State.STILL_INSTALLING: {
        Event.DISPATCH: State.RUNNING,
        Event.POSTPONE: State.WAITING,
        Event.LOSE_SIGHT: State.STILL_INSTALLING,
    },
    State.CANCELLING: {},
}

TRANSITIONS: dict[State, dict[Event, State]] = {
    state: {**moves, Event.ASK_CANCEL: State.CANCELLING, **_ENDINGS} for state, moves in _MOVES.items()
}
"""The transition table. Every open state can reach every end; an ended operation never changes."""


def advance(state: State, event: Event) -> State:
    """Return the state after `event`; raise if the table has no such edge."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"A {state} operation cannot take the event {event}.") from None


BACK_OFF_FIRST = timedelta(seconds=30)
BACK_OFF_CAP = timedelta(minutes=15)


def back_off(failures: int, *, first: timedelta = BACK_OFF_FIRST, cap: timedelta = BACK_OFF_CAP) -> timedelta:
    """Return the pause after the n-th counted failure: 30 s, 1, 2, 4, 8, 15, 15 ... minutes."""
    doublings = min(max(failures - 1, 0), 32)
    return min(first * (1 << doublings), cap)

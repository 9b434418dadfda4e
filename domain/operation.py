"""Operations: the entity, its states, and the transition table that allows a state change."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from nodesmith.domain.errors import IllegalTransition
from nodesmith.domain.installed import InstalledBackend
from nodesmith.domain.kinds import Kind
from nodesmith.domain.wire_enum import WireEnum


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
    LOADING = "loading"
    """the process of a model runs and is not ready yet"""
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
    BACKEND = "backend"
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
ON_NODE = frozenset({State.RUNNING, State.STILL_INSTALLING})
"""the node works on it"""

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


STALLED_AFTER = timedelta(seconds=60)
NO_WORKER_AFTER = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Progress on the node: the last value received, safe to lose."""

    phase: Phase | None = None
    bytes_done: int = 0
    bytes_total: int = 0
    percentage: float = 0.0
    rate: float = 0.0
    """bytes per second"""
    eta_s: float | None = None
    at: datetime | None = None

    def during(self, state: State) -> "Gauge":
        """Return the gauge as valid in that state: while an operation waits, its last attempt's gauge means nothing."""
        if state is State.WAITING:
            return Gauge()
        if state not in ENDED:
            return self
        ended = replace(self, phase=None, rate=0.0, eta_s=None)
        return replace(ended, bytes_done=self.bytes_total, percentage=100.0) if state is State.SUCCEEDED else ended


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """One change of an operation's state; `id` numbers the changes of all operations in the order of their commits."""

    id: int
    op_id: str
    node_id: str
    node_name: str
    backend: str
    kind: Kind
    batch_id: str | None
    state: State
    reason: Reason | None
    detail: str
    until: datetime | None
    attempt: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change of a backend or of a model's replica on one node, as its row recorded it at `read_at`."""

    op_id: str
    kind: Kind
    node_id: str
    node_name: str
    backend: str
    family: str
    version: str = ""
    uri: str = ""
    sha256: str = ""
    force: bool = False
    verified: str = ""
    """how the artifact was verified, and which keys signed it"""
    state: State
    reason: Reason | None = None
    detail: str = ""
    until: datetime | None = None
    attempt: int = 0
    gauge: Gauge = Gauge()
    """as last written; `progress` is the part that is valid in the current state"""
    before: InstalledBackend | None = None
    after: InstalledBackend | None = None
    changed: bool | None = None
    bytes_fetched: int = 0
    bytes_reused: int = 0
    requested_by: str = ""
    note: str = ""
    cancelled_by: str = ""
    batch_id: str | None = None
    retry_of: str | None = None
    created_at: datetime
    dispatched_at: datetime | None = None
    ended_at: datetime | None = None
    dismissed_at: datetime | None = None
    workflow_id: str = ""
    run_id: str = ""
    changed_at: datetime
    """when the state last changed"""
    read_at: datetime = field(compare=False)
    timeline: Sequence[StateChange] = ()
    """only where a reader asked for it"""

    @property
    def stalled(self) -> bool:
        """Whether it runs and no byte arrived for 60 s; a model that gets ready moves no bytes."""
        moved = max(self.changed_at, self.gauge.at or self.changed_at)
        is_late = self.read_at - moved > STALLED_AFTER
        return self.state is State.RUNNING and is_late and self.gauge.phase is not Phase.LOADING

    @property
    def progress(self) -> Gauge:
        """The gauge as valid in the current state; a stalled operation has no rate."""
        gauge = replace(self.gauge, rate=0.0, eta_s=None) if self.stalled else self.gauge
        return gauge.during(self.state)

    @property
    def is_cancellable(self) -> bool:
        """Whether a cancel can still take effect."""
        is_past_it = self.state in ON_NODE and not self.kind.rules.cancellable_on_node
        return self.state not in ENDED and not is_past_it

    @property
    def lacks_worker(self) -> bool:
        """Whether only the API has written the row so far, and no node works on it."""
        is_overdue = self.read_at - self.created_at > NO_WORKER_AFTER
        return self.state is State.QUEUED and is_overdue and self.gauge.at is None

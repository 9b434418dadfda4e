"""Batches: one intent for many nodes, its members, and the verdicts of members without an operation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, auto

from nodesmith.domain.kinds import Kind
from nodesmith.domain.operation import Reason, State
from nodesmith.domain.wire_enum import WireEnum

WAITING_FOR_TURN = "waiting_for_turn"
"""of a member that the batch has not started yet"""


class BatchState(WireEnum):
    RUNNING = auto()
    PAUSED = auto()
    CANCELLING = auto()
    COMPLETED = auto()
    """every member has its result; some may have failed"""
    STOPPED = auto()
    """too many failures: the remaining members were not started"""
    CANCELLED = auto()
    UNKNOWN = auto()


ENDED_BATCHES = frozenset({BatchState.COMPLETED, BatchState.STOPPED, BatchState.CANCELLED})


class MemberVerdict(WireEnum):
    """The result of a member that has no operation in this batch."""

    SKIPPED = auto()
    CONFLICT = auto()
    REFUSED = auto()
    NOT_STARTED = auto()
    NOTHING_TO_DO = auto()
    UNKNOWN = auto()


class RetrySelect(StrEnum):
    """Which members of a batch are retried; never those that succeeded."""

    FAILED = auto()
    """failed, gave up, did not connect, had a conflict, or were not started because others failed"""
    CANCELLED = auto()
    """cancelled, or not started because the batch was cancelled"""
    ALL_UNFINISHED = auto()
    """both, and members whose node was refused"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One node's part in a batch: an operation, a verdict, or neither yet."""

    node_id: str
    node_name: str
    op_id: str | None = None
    joined: bool = False
    """the operation was open already when the batch requested it"""
    operation_state: State | None = None
    verdict: MemberVerdict | None = None
    reason: Reason | None = None
    """why the operation waits or how it ended"""
    detail: str = ""
    """of the operation, or of the verdict"""
    percentage: float = 0.0

    @property
    def state(self) -> str:
        """The state of its operation, its verdict, or `waiting_for_turn`."""
        standing = self.operation_state or self.verdict
        return standing.value if standing is not None else WAITING_FOR_TURN


@dataclass(frozen=True, slots=True)
class FailureCount:
    """One cause of failed attempts: a reason code, or the error as the node reported it."""

    cause: str
    attempts: int
    nodes: int


@dataclass(frozen=True, slots=True)
class AttemptFailures:
    """Failed attempts of a batch: how many, on how many nodes, and the three most frequent causes."""

    attempts: int = 0
    nodes: int = 0
    causes: Sequence[FailureCount] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One intent for many nodes."""

    batch_id: str
    kind: Kind
    backend: str
    family: str
    version: str = ""
    state: BatchState
    detail: str = ""
    max_parallel: int
    max_failures: int | None = None
    count_attempts: bool = False
    max_attempts: int | None = None
    requested_by: str = ""
    note: str = ""
    retry_of: str | None = None
    created_at: datetime
    ended_at: datetime | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """state or verdict -> number of members"""
    failures: AttemptFailures = AttemptFailures()
    """of a single batch; lists do not count them"""
    members: Sequence[Member] = ()
    """only where a reader asked for them"""

"""Which operations a list has, and the summary of the open ones."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, auto

from nodesmith.domain.operation import State


class OperationScope(StrEnum):
    """Which operations a list has, before its filters."""

    LIVE = auto()
    """open, or ended badly and not dismissed"""
    OPEN = auto()
    ENDED = auto()
    """the history: the latest end first, kept for 90 days"""
    ALL = auto()


@dataclass(frozen=True, kw_only=True)
class OperationFilter:
    """Which operations; fields that are None restrict nothing."""

    node: str | None = None
    """id or name of the node"""
    backend: str | None = None
    state: State | None = None
    batch: str | None = None
    """id of the batch"""


@dataclass(kw_only=True)
class OpenWork:
    """Open operations of one node, or of one backend."""

    name: str
    node_id: str = ""
    """empty for a backend"""
    total: int = 0
    states: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    """reason for waiting -> number of operations"""
    oldest: datetime | None = None
    """when the oldest of them was requested"""
    next_try: datetime | None = None
    """when the first of them stops waiting"""

    def add(self, number: int, *, state: str, reason: str | None, oldest: datetime, until: datetime | None) -> None:
        self.total += number
        self.states[state] = self.states.get(state, 0) + number
        if reason:
            self.reasons[reason] = self.reasons.get(reason, 0) + number
        self.oldest = min(filter(None, (self.oldest, oldest)))
        self.next_try = min(filter(None, (self.next_try, until)), default=None)

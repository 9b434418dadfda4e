"""A change by a user, as stored in the audit trail."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ChangeState(StrEnum):
    """Whether a change was completed; it is recorded before it is made, so that none is missed."""

    DONE = "done"
    UNKNOWN = "unknown"
    """started; the process died or failed before it recorded the result"""


@dataclass(frozen=True)
class AuditChange:
    actor: str
    action: str
    """resource and verb: nodes.approve"""
    target: str
    """its name, as users know it"""
    target_id: str = ""
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RecordedChange(AuditChange):
    """A change as the audit trail has it."""

    id: int
    """newer ones are greater"""
    at: datetime
    outcome: ChangeState

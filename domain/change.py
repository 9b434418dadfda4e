"""A change that somebody made, as the audit trail keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Known(StrEnum):
    """What is known of a change: it is written down before it is made, so that none goes unseen."""

    DONE = "done"
    UNKNOWN = "unknown"
    """begun; whoever made it died or failed before it could say how it went"""


@dataclass(frozen=True)
class Change:
    actor: str
    action: str
    """resource and verb: nodes.approve"""
    target: str
    """its name, as people know it"""
    target_id: str = ""
    before: Mapping[str, object] | None = None
    after: Mapping[str, object] | None = None
    reason: str = ""

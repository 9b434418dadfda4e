"""A change that somebody made, as the audit trail keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass


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

"""The hold: an operator's order that nothing new starts on any node."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Hold:
    """A hold that is in force."""

    reason: str
    by: str
    since: datetime
